# SPDX-License-Identifier: MIT
"""What the process pays for memory and for tiny numbers, for stock models as much as for swapped ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import _core

__all__ = ["denormal_parameters", "flush_denormals", "reuse_freed"]

# For each dtype: the integer of its size, and its exponent's bits.
_EXPONENT = {
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000),
    torch.float32: (torch.int32, 0x7F80_0000),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float16: (torch.int16, 0x7C00),
}


def reuse_freed(enabled: bool = True) -> None:
    """Tell the C library to keep freed blocks, however large, for the next allocation of the process.

    By default glibc returns large blocks to the system, and every large output of an operator on the CPU begins
    with page faults. Kept blocks cost memory: the process stays as large as it ever was. False restores fixed
    thresholds of 32 and 64 MB, where glibc's own, moving ones end after some steps, and gives free memory back.

    Raises: RuntimeError where the C library is not glibc.
    Source: mallopt(3), M_MMAP_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD.
    """
    if not _core.memory_reuse(bool(enabled)):
        raise RuntimeError("reuse_freed: the C library of this process has no mallopt, only glibc does")


def flush_denormals(enabled: bool = True) -> None:
    """Treat denormal numbers as zero on the calling thread and on all threads that torch computes with for it.

    torch.set_flush_denormal reaches the calling thread only. Call this again after torch.set_num_threads. Other
    threads of Python that compute have pools of their own, and call this for themselves.

    Raises: RuntimeError where the processor has no such switch, or a thread of the pool did not answer.
    Source: Intel SDM volume 1, section 10.2.3 (MXCSR: FTZ, DAZ); Arm ARM, FPCR.FZ.
    """
    reached, threads = _core.memory_flush(bool(enabled)), max(_core.threads(), torch.get_num_threads())
    if not reached:
        raise RuntimeError("flush_denormals: this processor has no switch for denormal numbers")
    if reached < threads:
        raise RuntimeError(f"flush_denormals: {reached} of {threads} threads of the pool were reached")


def denormal_parameters(model: nn.Module) -> dict[str, int]:
    """How many denormal numbers each parameter holds; parameters without any are left out.

    A channel without a gradient decays under weight decay until its weights are denormal, and arithmetic on them
    takes a CPU up to a hundred times longer. Counted by their bits, so that flush_denormals does not hide them.
    """
    counts = {name: _count(p.detach()) for name, p in model.named_parameters() if not is_lazy(p)}
    return {name: count for name, count in counts.items() if count}


def _count(tensor: Tensor) -> int:
    if tensor.dtype not in _EXPONENT or tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    integer, exponent = _EXPONENT[tensor.dtype]
    bits = tensor.view(integer)
    magnitude = bits & torch.iinfo(integer).max
    return int(((bits & exponent == 0) & (magnitude != 0)).sum())
