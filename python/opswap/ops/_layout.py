# SPDX-License-Identifier: MIT
"""Memory formats, decided as torch decides them in C++ (c10/core/MemoryFormat.h), for real and fake tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "CHANNELS_LAST",
    "batch_norm_format",
    "batch_norm_gradient_format",
    "cat_memory_format",
    "dense_copy",
    "dense_strides",
    "empty",
    "exactly_dense",
    "is_strided",
    "suggest_memory_format",
    "to_channels_last",
]

# By the dimensions of a batch of images or volumes.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_ORDER = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


def is_strided(tensor: Tensor) -> bool:
    """False for tensors that torch keeps in another way: sparse, MKL-DNN's, quantized, nested."""
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def suggest_memory_format(input: Tensor) -> torch.memory_format:
    """The memory format that torch's operators give an output made from `input`.

    A (N, C, 1, 1) tensor fits two formats; the stride order decides, and a tie means contiguous.
    """
    ndim = input.dim()
    if ndim not in CHANNELS_LAST:
        return torch.contiguous_format
    size, stride = input.shape, input.stride()
    if stride[1] == 0:
        return torch.contiguous_format
    smallest = 0
    for dim in _ORDER[ndim]:
        if size[dim] == 0 or stride[dim] < smallest:
            return torch.contiguous_format
        if dim == 0 and smallest == stride[1]:
            return torch.contiguous_format
        smallest = stride[dim] * size[dim]
    return CHANNELS_LAST[ndim]


def to_channels_last(tensor: Tensor) -> Tensor:
    """A batch of images or volumes in channels_last; another tensor as it is."""
    last = CHANNELS_LAST.get(tensor.dim())
    return tensor if last is None else tensor.contiguous(memory_format=last)


def _fits(input: Tensor) -> torch.memory_format | None:
    """The memory format that the tensor is dense in, contiguous if several fit; None if it is in none."""
    if input.is_contiguous():
        return torch.contiguous_format
    last = CHANNELS_LAST.get(input.dim())
    return last if last is not None and input.is_contiguous(memory_format=last) else None


def batch_norm_format(input: Tensor) -> torch.memory_format:
    """The memory format of the output of torch.nn.functional.batch_norm (ATen/native/Normalization.cpp).

    A dense input decides by its elements alone: strides of dimensions of size 1 do not count, as they do in
    `suggest_memory_format`, which decides for any other input. csrc/binding/bind_norm.c has the same rule.
    """
    return _fits(input) or suggest_memory_format(input)


def batch_norm_gradient_format(grad_output: Tensor, input: Tensor) -> torch.memory_format:
    """The memory format of the gradient of its input."""
    suggested = suggest_memory_format(input)
    alike = _fits(grad_output) and suggest_memory_format(grad_output) is suggested
    return _fits(input) or suggested if alike else suggested


def cat_memory_format(tensors: Sequence[Tensor]) -> torch.memory_format:
    """The memory format of torch.cat(tensors): the common one, or contiguous if they differ."""
    first = suggest_memory_format(tensors[0])
    if first is torch.contiguous_format:
        return first
    same = all(suggest_memory_format(t) is first for t in tensors[1:])
    return first if same else torch.contiguous_format


def dense_strides(size: Sequence[int], memory_format: torch.memory_format) -> tuple[int, ...]:
    """Strides, in elements, of a dense tensor of this size in this memory format."""
    order: Sequence[int] = range(len(size) - 1, -1, -1)
    if memory_format is not torch.contiguous_format:
        order = _ORDER[len(size)]
    strides = [0] * len(size)
    step = 1
    for dim in order:
        strides[dim] = step
        step *= max(size[dim], 1)
    return tuple(strides)


def empty(
    like: Tensor, size: Sequence[int], memory_format: torch.memory_format, dtype: torch.dtype | None = None
) -> Tensor:
    """A dense tensor of this size in this memory format, not initialised."""
    if memory_format is torch.contiguous_format:
        return like.new_empty(tuple(size), dtype=dtype)
    return like.new_empty_strided(tuple(size), dense_strides(size, memory_format), dtype=dtype)


def dense_copy(input: Tensor, memory_format: torch.memory_format) -> Tensor:
    """A copy with exactly the strides of this memory format, if several would mean the same."""
    return empty(input, input.shape, memory_format).copy_(input)


def exactly_dense(fresh: Tensor, memory_format: torch.memory_format) -> Tensor:
    """A tensor that is not shared, with exactly the strides of this memory format, copied if it has others."""
    same = fresh.stride() == dense_strides(fresh.shape, memory_format)
    return fresh if same else dense_copy(fresh, memory_format)
