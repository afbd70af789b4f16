# SPDX-License-Identifier: MIT
"""Any fixed permutation of the channels, in torch's own operators on every device.

torch.index_select copies whole planes, and the gradient of a permutation is the gather by its inverse; torch
itself adds gradients up one by one, since an index may repeat. `take_channels` is for an index in a tensor, whose
values nobody knows before the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from ._function import (
    cached_constant,
    concrete_size,
    make_apply,
    needs_graph,
    plain_cpu,
    tracing,
    transforms_active,
)
from ._library import library
from .channels import channel_shuffle

__all__ = ["channel_permutation", "is_permutation", "reference", "shuffle_groups", "take_channels"]


def reference(input: Tensor, order: Sequence[int]) -> Tensor:
    """out[:, i] = input[:, order[i]], in plain torch."""
    return input[:, list(order)]


@cached_constant
def _index(order: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(order, dtype=torch.int64, device=device)


def is_permutation(order: Sequence[int]) -> bool:
    """True where the numbers 0 to C - 1 stand in some order."""
    return sorted(order) == list(range(len(order)))


@lru_cache(maxsize=256)
def shuffle_groups(order: tuple[int, ...]) -> int:
    """The number of groups with which this order is a channel shuffle, 0 where it is none."""
    channels = len(order)
    step = order[1] if channels > 1 else 0
    if not 1 < step < channels or channels % step:
        return 0
    groups = channels // step
    return groups if list(order) == [i * step + j for j in range(step) for i in range(groups)] else 0


@lru_cache(maxsize=256)
def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    if not is_permutation(order):
        raise ValueError(f"channel_permutation: order is no permutation: {list(order)}")
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _forward(order: tuple[int, ...], input: Tensor) -> Tensor:
    return input.index_select(1, _index(order, input.device))


def _setup(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.order = args[0]


def _backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
    # A compiled backward is never differentiated again, and Dynamo cannot trace a Function inside a backward.
    run = _forward if torch.compiler.is_compiling() else _differentiable
    return None, run(_inverse(ctx.order), grad)


def _jvp(ctx: Any, _: None, tangent: Tensor) -> Tensor:
    return _forward(ctx.order, tangent)


_apply = make_apply("ChannelPermutation", _forward, _setup, _backward, _jvp)


def _differentiable(order: tuple[int, ...], input: Tensor) -> Tensor:
    if transforms_active() or needs_graph((input,)):
        return _apply(order, input)
    return _forward(order, input)


def channel_permutation(input: Tensor, order: Sequence[int]) -> Tensor:
    """Reorder the channels: out[:, i] = input[:, order[i]].

    Args: input: (N, C, *) of any dtype; order: the numbers 0 to C - 1 in any order.
    Returns: (N, C, *), contiguous, as torch.index_select returns it.
    Raises: ValueError if order is not a permutation; RuntimeError if it is not one of C channels; TypeError if input is
        not a tensor.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(channel_permutation, (input,), input, order)
    if not isinstance(input, Tensor):
        raise TypeError(f"channel_permutation: input must be a tensor, got {type(input).__name__}")
    order = tuple(order)
    _inverse(order)
    size = concrete_size(input)
    if len(size) < 2 or size[1] != len(order):
        raise RuntimeError(
            f"channel_permutation: {len(order)} channels expected, got a tensor of size {tuple(size)}"
        )
    return reference(input, order) if tracing() else _differentiable(order, input)


def _spread(grad: Tensor, index: Tensor, channels: int) -> Tensor:
    """The gradient of input[:, index] for `channels` channels: a gather where the index is a permutation of them."""
    order = tuple(index.tolist())
    if len(order) == channels and is_permutation(order):
        return _forward(_inverse(order), grad)
    zeros = grad.new_zeros((grad.shape[0], channels, *grad.shape[2:]))
    return torch.ops.aten.index_put(zeros, (None, index), grad, accumulate=True)


def _fake_spread(grad: Tensor, index: Tensor, channels: int) -> Tensor:
    return grad.new_empty((grad.shape[0], channels, *grad.shape[2:]))


library.define("take_channels_backward(Tensor grad, Tensor index, SymInt channels) -> Tensor")
library.impl("take_channels_backward", _spread, "CompositeExplicitAutograd")
torch.library.register_fake("opswap::take_channels_backward", _fake_spread, lib=library)


def _take(input: Tensor, index: Tensor) -> Tensor:
    return input[:, index]


def _setup_take(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(args[1])
    ctx.channels = args[0].shape[1]


def _take_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.opswap.take_channels_backward(grad, *ctx.saved_tensors, ctx.channels), None


_apply_take = make_apply("TakeChannels", _take, _setup_take, _take_backward)


def take_channels(input: Tensor, index: Tensor) -> Tensor:
    """input[:, index], with a gather for a gradient where the index is a permutation of the channels.

    Args: input: (N, C, *) of any dtype; index: (K), int64, of a device that Python may read without waiting. Whether
        it is a permutation is seen on every call, also of a compiled graph.
    Returns: (N, K, *).
    Raises: as indexing does.
    """
    if not plain_cpu((index,)):
        return _take(input, index) if transforms_active() or tracing() else _apply_take(input, index)
    order = tuple(index.tolist())
    if len(order) != input.shape[1] or not is_permutation(order):
        return _take(input, index)
    groups = shuffle_groups(order)
    return channel_shuffle(input, groups) if groups else _differentiable(order, input)
