# SPDX-License-Identifier: MIT
"""Window offsets in plain torch: what torch's flat indices become, and back.

An offset is the number of a tap in row-major order within its window. An offset needs one byte, and does not depend on
where the window lies; torch's index needs eight bytes. If the dilation steps over the whole input, a window may have no
tap inside the input. Its offset is then that of its first tap that lies in or behind the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ._arguments import Window

__all__ = [
    "gather_at_offsets",
    "indices_to_offsets",
    "offset_dtype",
    "offsets_to_indices",
    "offsets_to_pixels",
]


def offset_dtype(kernel_size: Sequence[int]) -> torch.dtype:
    return torch.uint8 if math.prod(kernel_size) <= 256 else torch.int32


def _along(values: Tensor, dim: int, spatial: int) -> Tensor:
    """Shape a 1-D tensor so that it broadcasts along one spatial dimension."""
    return values.view([-1 if i == dim else 1 for i in range(spatial)])


def _starts(window: Window, sizes: Sequence[int], dim: int, device: torch.device) -> Tensor:
    """Position of the first tap of every window along `dim`, negative in the padding."""
    start = torch.arange(sizes[dim], device=device) * window.stride[dim] - window.padding[dim]
    return _along(start, dim, len(sizes))


def _first_taps(window: Window, sizes: Sequence[int], dim: int, device: torch.device) -> Tensor:
    before = (-_starts(window, sizes, dim, device)).clamp(min=0)
    return (before + window.dilation[dim] - 1) // window.dilation[dim]


def _can_miss(window: Window, input_size: Sequence[int]) -> bool:
    return any(d > size for d, size in zip(window.dilation, input_size, strict=True))


def _hits(window: Window, sizes: Sequence[int], input_size: Sequence[int], device: torch.device) -> Tensor:
    """True for windows that have a tap inside the input."""
    hits = torch.ones((), dtype=torch.bool, device=device)
    for dim, size in enumerate(input_size):
        tap = _first_taps(window, sizes, dim, device)
        hits = hits & (_starts(window, sizes, dim, device) + tap * window.dilation[dim] < size)
    return hits


def indices_to_offsets(indices: Tensor, window: Window, input_size: Sequence[int]) -> Tensor:
    """Offsets (N, C, *O) of flat int64 indices (N, C, *O) into planes of `input_size`."""
    sizes = indices.shape[2:]
    offsets, missed = torch.zeros_like(indices), torch.zeros_like(indices)
    rest, taps = indices, 1
    for dim in reversed(range(len(sizes))):
        position, rest = rest % input_size[dim], rest // input_size[dim]
        tap = (position - _starts(window, sizes, dim, indices.device)) // window.dilation[dim]
        offsets = offsets + tap * taps
        missed = missed + _first_taps(window, sizes, dim, indices.device) * taps
        taps *= window.kernel_size[dim]
    if _can_miss(window, input_size):
        offsets = torch.where(_hits(window, sizes, input_size, indices.device), offsets, missed)
    return offsets.to(offset_dtype(window.kernel_size))


def offsets_to_indices(offsets: Tensor, window: Window, input_size: Sequence[int]) -> Tensor:
    """Flat int64 indices (N, C, *O) into planes of `input_size`, torch's return_indices."""
    sizes = offsets.shape[2:]
    rest = offsets.long()
    indices, step = torch.zeros_like(rest), 1
    for dim in reversed(range(len(sizes))):
        tap, rest = rest % window.kernel_size[dim], rest // window.kernel_size[dim]
        position = _starts(window, sizes, dim, offsets.device) + tap * window.dilation[dim]
        indices = indices + position * step
        step *= input_size[dim]
    return indices


def offsets_to_pixels(
    offsets: Tensor, window: Window, input_size: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Flat indices that are safe to use, and where they mean something (None: everywhere)."""
    indices = offsets_to_indices(offsets, window, input_size)
    if not _can_miss(window, input_size):
        return indices, None
    hits = _hits(window, offsets.shape[2:], input_size, offsets.device)
    return torch.where(hits, indices, 0), hits


def gather_at_offsets(input: Tensor, offsets: Tensor, window: Window, channel_step: int) -> Tensor:
    """Read (N, C, *S) at the taps that a max pool chose: its derivative, differentiable itself.

    Returns: (N, ceil(C / channel_step), *O) as offsets.
    """
    pixels, hits = offsets_to_pixels(offsets, window, input.shape[2:])
    planes = input[:, ::channel_step].flatten(2)
    taken = planes.gather(2, pixels.flatten(2)).view(offsets.shape)
    return taken if hits is None else torch.where(hits, taken, 0)
