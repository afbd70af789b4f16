# SPDX-License-Identifier: MIT
"""The memory format of a tensor, as torch's operators read it off the strides."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from torch import Tensor

from opswap.ops._layout import CHANNELS_LAST, suggest_memory_format

__all__ = ["Format", "format_of", "innermost"]


class Format(Enum):
    """Order in memory of an image (N, C, H, W) or volume (N, C, D, H, W)."""

    LAST = "channels_last"
    CONTIGUOUS = "contiguous"
    AMBIGUOUS = "ambiguous"  # the strides fit both, or are 0
    OTHER = "other"  # neither, such as a transposed view
    NONE = "none"  # not 4-D or 5-D


# Formats by sizes and strides, of which a model has few: looked up several times for each operator.
_known: dict[tuple[Sequence[int], Sequence[int]], Format] = {}
_MOST_KNOWN = 4096


def format_of(tensor: Tensor) -> Format:
    """The format of a strided tensor; slices count as the tensor that they are cut from.

    AMBIGUOUS: C is 1, all sizes after it are 1, there are no elements, or the tensor is expanded. torch then uses
    the tensor for contiguous, unless its strides are exactly those that channels_last would have.
    """
    if not 4 <= tensor.dim() <= 5:
        return Format.NONE
    key = (tensor.shape, tensor.stride())
    format = _known.get(key)
    if format is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        format = _known[key] = _format_of(tensor, *key)
    return format


def _format_of(tensor: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Format:
    last = CHANNELS_LAST[len(shape)]
    if shape[1] == 1 or max(shape[2:]) == 1 or 0 in shape:
        return Format.AMBIGUOUS
    if any(s == 0 and n > 1 for s, n in zip(stride, shape, strict=True)):
        return Format.AMBIGUOUS
    if tensor.is_contiguous():
        return Format.AMBIGUOUS if tensor.is_contiguous(memory_format=last) else Format.CONTIGUOUS
    if tensor.is_contiguous(memory_format=last) or suggest_memory_format(tensor) is last:
        return Format.LAST
    ordered = [s for s, n in zip(stride, shape, strict=True) if n > 1]
    return Format.CONTIGUOUS if ordered == sorted(ordered, reverse=True) else Format.OTHER


def innermost(tensor: Tensor) -> int:
    """The dimension whose neighbours lie next to each other in memory: the least stride, of sizes above 1."""
    best, least = -1, 0
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and (best < 0 or stride <= least):
            best, least = dim, stride
    return best
