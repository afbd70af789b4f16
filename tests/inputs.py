# SPDX-License-Identifier: MIT
"""Inputs that every family must take: each dtype, and each way a tensor can lie in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)

# Numbers of columns around the widths of vectors of 4 to 32 elements.
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 97)


def values(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random values; floating point ones include NaN, infinities and -0.0."""
    if dtype == torch.bool:
        return torch.rand(size) < 0.5
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 120, size, dtype=dtype)
    real = torch.randn(size, dtype=torch.float64)
    for special in (float("nan"), float("inf"), -float("inf"), -0.0):
        real = torch.where(torch.rand(size) < 0.02, special, real)
    if dtype.is_complex:
        return torch.complex(real, real.flip(0)).to(dtype)
    return real.to(dtype)


def channels_last_of(ndim: int) -> torch.memory_format:
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(ndim, torch.contiguous_format)


def _chunk(t: Tensor) -> Tensor:
    """The second half of a tensor with twice the channels, in the same memory format."""
    wide = torch.cat((t, t), 1)
    if not t.is_contiguous():
        wide = wide.contiguous(memory_format=channels_last_of(t.dim()))
    return wide.chunk(2, 1)[1]


def _every_second_image(t: Tensor) -> Tensor:
    return t.repeat_interleave(2, 0)[::2]


def _reversed_memory(t: Tensor) -> Tensor:
    """The same values with the order of dimensions in memory reversed."""
    dims = tuple(range(t.dim() - 1, -1, -1))
    return t.permute(dims).contiguous().permute(dims)


def _spatial_slice(t: Tensor) -> Tensor:
    return t if t.dim() < 3 else t.repeat_interleave(2, -1)[..., ::2]


def _expanded_batch(t: Tensor) -> Tensor:
    return t[:1].expand_as(t) if t.shape[0] else t


def _offset(t: Tensor) -> Tensor:
    """Dense, but starting one element into its storage."""
    storage = torch.empty(t.numel() + 1, dtype=t.dtype)
    return storage[1:].view(t.shape).copy_(t)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t.contiguous(),
    "channels_last": lambda t: t.contiguous(memory_format=channels_last_of(t.dim())),
    "chunk": _chunk,
    "channels_last_chunk": lambda t: _chunk(t.contiguous(memory_format=channels_last_of(t.dim()))),
    "every_second_image": _every_second_image,
    "reversed_memory": _reversed_memory,
    "spatial_slice": _spatial_slice,
    "expanded_batch": _expanded_batch,
    "offset": _offset,
}


def layout_of(t: Tensor) -> list[int]:
    """Strides that mean something."""
    return [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal shape, dtype and bits: NaN equals the same NaN, 0.0 differs from -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.numel() else True
