# SPDX-License-Identifier: MIT
"""Switches of the process: freed memory, and arithmetic on denormal numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from opswap import _core

__all__ = ["flush_denormals", "flush_state_kept", "reuse_freed", "reuses_freed"]

_reuses = False


def reuse_freed(enabled: bool = True) -> None:
    """Tell the C library to keep freed blocks, however large, for the next allocation of the process.

    By default glibc returns large blocks to the system, and every large output of an operator on the CPU begins
    with page faults. Kept blocks cost memory: the process stays as large as it ever was. False restores fixed
    thresholds of 32 and 64 MB, where glibc's own, moving ones end after some steps, and gives free memory back.

    Raises: RuntimeError if the C library is not glibc.
    Source: mallopt(3), M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD.
    """
    global _reuses
    if not _core.memory_reuse(bool(enabled)):
        raise RuntimeError("reuse_freed: the C library of this process has no mallopt, only glibc does")
    _reuses = bool(enabled)


def reuses_freed() -> bool:
    """True after `reuse_freed(True)`."""
    return _reuses


def flush_denormals(enabled: bool = True) -> None:
    """Treat denormal numbers as zero on the calling thread and on all threads that torch computes with for it.

    torch.set_flush_denormal reaches the calling thread only. Call this again after torch.set_num_threads. Other
    threads of Python that compute have pools of their own, and call this for themselves.

    Raises: RuntimeError if the processor has no such switch, or a thread of the pool did not answer.
    Source: Intel SDM volume 1, section 10.2.3 (MXCSR: FTZ, DAZ); Arm ARM, FPCR.FZ.
    """
    reached, threads = _core.memory_flush(bool(enabled)), max(_core.threads(), torch.get_num_threads())
    if not reached:
        raise RuntimeError("flush_denormals: this processor has no switch for denormal numbers")
    if reached < threads:
        raise RuntimeError(f"flush_denormals: {reached} of {threads} threads of the pool were reached")


@contextlib.contextmanager
def reuse_kept() -> Iterator[None]:
    """Within, reuse_freed may be called; afterwards freed memory is reused, or not, as before."""
    before = reuses_freed()
    try:
        yield
    finally:
        if reuses_freed() != before:
            reuse_freed(before)


@contextlib.contextmanager
def flush_state_kept() -> Iterator[bool]:
    """Within, flush_denormals may be called at will; afterwards every thread flushes, or not, as it did before.

    Yields: False if this processor has no switch, or a thread of the pool did not answer: then nothing may be measured.
    """
    threads = _core.threads()
    reached = _core.memory_flush_save()
    try:
        yield reached >= threads > 0
    finally:
        _core.memory_flush_restore()
