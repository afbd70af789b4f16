# SPDX-License-Identifier: MIT
"""How many denormal numbers a tensor holds, by their bits, so that flushing does not hide them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = ["can_count", "count_denormals", "denormal_parameters"]


def _bits_of(integer: torch.dtype, mantissa: int) -> tuple[torch.dtype, int, int]:
    """The integer, the largest one, and one more than the largest to which `_count` moves a denormal number."""
    info = torch.iinfo(integer)
    return integer, info.max, info.min + (1 << mantissa) - 1


# For each dtype, from the integer of its size and the bits of its mantissa.
_BITS = {
    torch.float64: _bits_of(torch.int64, 52),
    torch.float32: _bits_of(torch.int32, 23),
    torch.bfloat16: _bits_of(torch.int16, 7),
    torch.float16: _bits_of(torch.int16, 10),
}
_PART = 1 << 17  # numbers counted at once, whose bits stay in a cache


def can_count(tensor: Tensor) -> bool:
    """True for a strided real tensor of floating point with data.

    The zeros that forward-mode differentiation uses for missing tangents have no memory.
    """
    strided = tensor.dtype in _BITS and tensor.layout is torch.strided
    return strided and not (tensor.is_meta or tensor.is_nested or tensor._is_zerotensor())


def count_denormals(tensor: Tensor) -> int:
    """The denormal numbers among those of a tensor, 0 if it is of another kind than `can_count` knows."""
    size = tensor.numel()
    if not size or not can_count(tensor):
        return 0
    integer, largest, limit = _BITS[tensor.dtype]
    bits = _flat(tensor.detach()).view(integer)
    return sum(_count(part, largest, limit) for part in (bits.split(_PART) if size > _PART else (bits,)))


def _count(bits: Tensor, largest: int, limit: int) -> int:
    # With the sign cut off, zero is 0 and the denormals are 1 and up. Adding the largest integer turns 0 into that,
    # and 1 and up into the least ones, by the wrap of the sum: one comparison finds them.
    moved = (bits & largest).add_(largest)
    # Most tensors hold none, which the least one shows in half the time.
    return int(moved.lt(limit).count_nonzero()) if moved.min().item() < limit else 0


def _flat(tensor: Tensor) -> Tensor:
    """All numbers in a dense tensor of one dimension, without a copy if they lie dense in any order."""
    if not tensor.is_contiguous():
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        tensor = tensor.permute(order)
    return tensor.reshape(-1)


def denormal_parameters(model: nn.Module) -> dict[str, int]:
    """How many denormal numbers each parameter holds; parameters without any are left out.

    A channel without a gradient decays under weight decay until its weights are denormal, and arithmetic on them
    takes a CPU up to a hundred times longer. Counted by their bits, so that flush_denormals does not hide them.
    """
    counts = {name: count_denormals(p) for name, p in model.named_parameters() if not is_lazy(p)}
    return {name: count for name, count in counts.items() if count}
