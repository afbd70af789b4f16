# SPDX-License-Identifier: MIT
"""Any fixed permutation of the channels, in torch's own operators on every device.

torch.index_select copies whole planes, and the gradient of a permutation is the gather by its inverse; torch
itself adds gradients up one by one, since an index may repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ._function import make_apply, needs_graph, transforms_active

__all__ = ["channel_permutation", "reference"]


def reference(input: Tensor, order: Sequence[int]) -> Tensor:
    """out[:, i] = input[:, order[i]], in plain torch."""
    return input[:, list(order)]


@lru_cache(maxsize=256)
def _index(order: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(order, dtype=torch.int64, device=device)


@lru_cache(maxsize=256)
def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    if sorted(order) != list(range(len(order))):
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
    Raises: ValueError for an order that is no permutation; RuntimeError where it is not one of C channels.
    """
    order = tuple(order)
    _inverse(order)
    if input.dim() < 2 or input.shape[1] != len(order):
        raise RuntimeError(
            f"channel_permutation: {len(order)} channels expected, got a tensor of size {tuple(input.shape)}"
        )
    return _differentiable(order, input)
