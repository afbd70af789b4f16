# SPDX-License-Identifier: MIT
"""Counts of calls that ran a kernel, the reference, or original code; how to force the reference."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from ._switch import active, disabled_here

__all__ = [
    "count_again",
    "count_kernel",
    "count_original",
    "count_reference",
    "counted_by",
    "force_reference",
    "reference_forced",
    "reset_stats",
    "stats",
]

_kernel: Counter[str] = Counter()
_reference: Counter[str] = Counter()
_original: Counter[str] = Counter()
_forced = 0


# For `counted_by`: the thread, and what it has counted.
_counting: list[tuple[int, Counter[tuple[bool, str]]]] = []


def count_kernel(name: str) -> None:
    _kernel[name] += 1
    if _counting:
        _tell(_kernel, name)


def count_reference(name: str) -> None:
    _reference[name] += 1
    if _counting:
        _tell(_reference, name)


def _tell(counter: Counter[str], name: str) -> None:
    for thread, counted in _counting:
        if thread == threading.get_ident():
            counted[counter is _kernel, name] += 1


@contextlib.contextmanager
def counted_by() -> Iterator[Counter[tuple[bool, str]]]:
    """What this thread counts within the context: (whether it is a kernel, operator) -> calls."""
    entry = threading.get_ident(), Counter[tuple[bool, str]]()
    _counting.append(entry)
    try:
        yield entry[1]
    finally:
        _counting.remove(entry)


def count_again(counts: Iterable[tuple[bool, str, int]]) -> None:
    """Count what was counted before: whether it is a kernel, operator, calls, negative to take them back."""
    for is_kernel, name, calls in counts:
        counter = _kernel if is_kernel else _reference
        counter[name] += calls
        if not counter[name]:
            del counter[name]


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
