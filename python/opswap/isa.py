# SPDX-License-Identifier: MIT
"""Which instruction set the kernels use.

Chosen once, when opswap is imported, from what the CPU and the operating system support. The environment variable
OPSWAP_ISA (scalar, neon, avx2 or avx512) caps it for the whole process, `limit` lowers it for a while.
"""

from __future__ import annotations

import contextlib
import functools
import threading

from . import _core, _np

__all__ = ["available", "current", "limit"]


@functools.cache  # reading it is slow on virtual machines
def available() -> tuple[str, ...]:
    """Tiers that this machine can run and OPSWAP_ISA allows, from the lowest ("scalar") to the highest."""
    return _core.isa_available()


def hidden() -> tuple[str, ...]:
    """Tiers for tests: portable16, portable32 and portable64, the kernels in plain C with vectors of so many bytes.

    Correct on every CPU and slow; only in-place builds and builds with OPSWAP_TEST_TIERS=1 have them. OPSWAP_ISA and
    `limit` accept their names.
    """
    return _core.isa_hidden()


def current() -> str:
    """The tier whose kernels run now."""
    return _core.isa_current()


def _limit(tier: str) -> None:
    """In both extensions. Raises: ValueError or TypeError, before anything changes."""
    _core.isa_limit(tier)
    _np.isa_limit(tier)


_lock = threading.RLock()
_entered: list[_Limit] = []  # by all threads, the oldest first


class _Limit(contextlib.AbstractContextManager[str]):
    """Contexts of several threads may overlap: one that is left before a later one lets that one put back the tier."""

    def __init__(self, previous: str) -> None:
        self._previous = previous

    def __enter__(self) -> str:
        with _lock:
            _entered.append(self)
        return current()

    def __exit__(self, *exc: object) -> None:
        with _lock:
            later = _entered[_entered.index(self) + 1 :]
            _entered.remove(self)
            if later:
                later[0]._previous = self._previous
            else:
                _limit(self._previous)


def limit(tier: str) -> contextlib.AbstractContextManager[str]:
    """Use at most this tier from now on, in the whole process; as a context manager, until the block ends.

    Args: tier: "scalar", "neon", "avx2" or "avx512"; if the machine lacks it, the highest one below it is used.
    Returns: a context manager that yields the tier in use and restores the previous one on exit.
    Raises: ValueError for another name.
    """
    with _lock:
        previous = current()
        _limit(tier)
    return _Limit(previous)
