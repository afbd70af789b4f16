# SPDX-License-Identifier: MIT
"""Any fixed permutation of the channels, in torch's own operators on every device.

torch.index_select copies whole planes, and the gradient of a permutation is the gather by its inverse; torch
itself adds gradients up one by one, since an index may repeat. `take_channels` is for an index in a tensor, whose
values are not known before the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from ._derivatives import linear_pair
from ._function import (
    cached_constant,
    concrete_size,
    needs_graph,
    plain_cpu,
    plain_eager,
    tracing,
    transforms_active,
)
from ._operator import Operator
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
    """True if these are the numbers 0 to C - 1 in some order."""
    return sorted(order) == list(range(len(order)))


@lru_cache(maxsize=256)
def shuffle_groups(order: tuple[int, ...]) -> int:
    """The number of groups with which this order is a channel shuffle, 0 if it is not a channel shuffle."""
    channels = len(order)
    step = order[1] if channels > 1 else 0
    if not 1 < step < channels or channels % step:
        return 0
    groups = channels // step
    return groups if list(order) == [i * step + j for j in range(step) for i in range(groups)] else 0


@lru_cache(maxsize=256)
def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    if not is_permutation(order):
        raise ValueError(f"channel_permutation: order is not a permutation: {list(order)}")
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _kernel(input: Tensor, order: Sequence[int]) -> Tensor:
    return input.index_select(1, _index(tuple(order), input.device))


def _fake(input: Tensor, order: Sequence[int]) -> Tensor:
    return input.new_empty(input.shape)


# order: the numbers 0 to C - 1 in any order; returns input[:, order], contiguous.
_operator = Operator("channel_permutation(Tensor input, int[] order) -> Tensor", _kernel, _kernel, _fake)


def _gather(tangent: Tensor, inverse: tuple[int, ...]) -> Tensor:
    return _permute(tangent, _inverse(inverse))


def _scatter(grad: Tensor, inverse: tuple[int, ...]) -> Tensor:
    return _permute(grad, inverse)


linear_pair(
    _operator,
    _scatter,
    lambda constants, *_: ((), (_inverse(tuple(constants[0])),)),
    _gather,
)


_apply_plain = _operator.make_apply(lambda constants, input: _kernel(input, *constants))


def _permute(input: Tensor, order: tuple[int, ...]) -> Tensor:
    if not plain_eager():
        return _operator(input, order)
    return _apply_plain((order,), input) if needs_graph((input,)) else _kernel(input, order)


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
    return reference(input, order) if tracing() else _permute(input, order)


def _spread(grad: Tensor, index: Tensor, channels: int) -> Tensor:
    """The gradient of input[:, index] for `channels` channels: a gather if the index is a permutation of them."""
    order = tuple(index.tolist())
    if len(order) == channels and is_permutation(order):
        return _kernel(grad, _inverse(order))
    zeros = grad.new_zeros((grad.shape[0], channels, *grad.shape[2:]))
    return torch.ops.aten.index_put(zeros, (None, index), grad, accumulate=True)


def _fake_spread(grad: Tensor, index: Tensor, channels: int) -> Tensor:
    return grad.new_empty((grad.shape[0], channels, *grad.shape[2:]))


def _take(input: Tensor, index: Tensor) -> Tensor:
    return input[:, index]


# index: (K), channels of input; returns input[:, index].
_take_operator = Operator(
    "take_channels(Tensor input, Tensor index) -> Tensor",
    _take,
    _take,
    _take,
)
# The sum of grad over what each of `channels` channels was taken to.
_spread_operator = Operator(
    "take_channels_backward(Tensor grad, Tensor index, SymInt channels) -> Tensor",
    _spread,
    _spread,
    _fake_spread,
)
linear_pair(
    _take_operator,
    _spread_operator,
    lambda _, tensors, __: (tensors[1:], (tensors[0].shape[1],)),
    lambda tangent, index, _: _take_operator(tangent, index),
)


def take_channels(input: Tensor, index: Tensor) -> Tensor:
    """input[:, index], with a gather for a gradient if the index is a permutation of the channels.

    Args: input: (N, C, *) of any dtype; index: (K), int64, of a device that Python may read without waiting. Whether
        it is a permutation is seen on every call, also of a compiled graph.
    Returns: (N, K, *).
    Raises: as indexing does.
    """
    if not plain_cpu((index,)):
        return _take(input, index) if transforms_active() or tracing() else _take_operator(input, index)
    order = tuple(index.tolist())
    if len(order) != input.shape[1] or not is_permutation(order):
        return _take(input, index)
    groups = shuffle_groups(order)
    return channel_shuffle(input, groups) if groups else _permute(input, order)
