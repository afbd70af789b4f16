# SPDX-License-Identifier: MIT
"""Counts of calls that ran a kernel, the reference, or original code; how to force the reference."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from ._switch import active, disabled_here

__all__ = [
    "count_kernel",
    "count_original",
    "count_reference",
    "force_reference",
    "reference_forced",
    "reset_stats",
    "stats",
]

_kernel: Counter[str] = Counter()
_reference: Counter[str] = Counter()
_original: Counter[str] = Counter()
_forced = 0


def count_kernel(name: str) -> None:
    _kernel[name] += 1


def count_reference(name: str) -> None:
    _reference[name] += 1


def count_original(name: str) -> None:
    _original[name] += 1


def reference_forced() -> bool:
    """True if no kernel may run: within `force_reference`, or within `disabled` in this thread."""
    if active:
        return _forced > 0 or disabled_here()
    return False


def stats() -> dict[str, dict[str, int]]:
    """Calls since the last `reset_stats`, by operator.

    Returns: `{"kernel": {operator: calls}, "reference": {operator: calls}, "original": {class: calls}}`.
    "reference" counts the calls that ran as plain torch code: another device, a layout or dtype that no kernel
    covers, or `force_reference`; "original" the calls of swapped modules that ran their original forward.
    """
    return {"kernel": dict(_kernel), "reference": dict(_reference), "original": dict(_original)}


def reset_stats() -> None:
    """Set every count to zero."""
    _kernel.clear()
    _reference.clear()
    _original.clear()


@contextlib.contextmanager
def force_reference() -> Iterator[None]:
    """Within this context every operator runs its plain torch form, as it does on other devices."""
    global _forced
    token = object()
    _forced += 1
    active.append(token)
    try:
        yield
    finally:
        active.remove(token)
        _forced -= 1
