# SPDX-License-Identifier: MIT
"""Tensors without elements, whose data pointer is NULL: a build by clang with OPSWAP_SANITIZE traps offsets from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

import opswap.functional as F
from opswap._torch import tree_leaves

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def _ones(*size: int, like: Tensor) -> Tensor:
    return torch.ones(size, dtype=like.dtype, requires_grad=like.requires_grad)


def _norm(function: Callable[..., Tensor], x: Tensor, training: bool) -> Tensor:
    channels = x.shape[1]
    return function(x, torch.zeros(channels), torch.ones(channels), None, None, training)


# (stock, ours), of which sizes and dtypes are compared; where stock raises, ours must raise too.
IMAGES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "shuffle": (lambda x: T.channel_shuffle(x, 2), lambda x: F.channel_shuffle(x, 2)),
    "cat, shuffle, split": (
        lambda x: torch.cat([x, x], 1).chunk(2, 1),
        lambda x: F.cat_channel_shuffle_split([x, x], 2, 2),
    ),
    "max pool": (lambda x: T.max_pool2d(x, 3, 1, 1), lambda x: F.max_pool2d(x, 3, 1, 1)),
    "max pool, indices": (
        lambda x: T.max_pool2d(x, 2, return_indices=True),
        lambda x: F.max_pool2d(x, 2, return_indices=True),
    ),
    "adaptive max pool": (lambda x: T.adaptive_max_pool2d(x, 2), lambda x: F.adaptive_max_pool2d(x, 2)),
    "norm, training": (lambda x: _norm(T.batch_norm, x, True), lambda x: _norm(F.batch_norm, x, True)),
    "norm": (lambda x: _norm(T.batch_norm, x, False), lambda x: _norm(F.batch_norm, x, False)),
    "pointwise": (
        lambda x: T.conv2d(x, _ones(8, x.shape[1], 1, 1, like=x), _ones(8, like=x)),
        lambda x: F.pointwise_conv2d(x, _ones(8, x.shape[1], 1, 1, like=x), _ones(8, like=x)),
    ),
    "depthwise": (
        lambda x: T.conv2d(x, _ones(x.shape[1], 1, 3, 3, like=x), None, 1, 1, 1, x.shape[1]),
        lambda x: F.depthwise_conv2d(x, _ones(x.shape[1], 1, 3, 3, like=x), None, 1, 1),
    ),
    "dropout": (lambda x: T.dropout(x, 0.5, True), lambda x: F.dropout(x, 0.5, True)),
}
VOLUMES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Any]]] = {
    "max pool": (lambda x: T.max_pool3d(x, (1, 2, 2)), lambda x: F.max_pool3d(x, (1, 2, 2))),
    "avg pool": (lambda x: T.avg_pool3d(x, 2), lambda x: F.avg_pool3d(x, 2)),
    "shuffle": (lambda x: T.channel_shuffle(x, 2), lambda x: F.channel_shuffle(x, 2)),
}


def _empties(size: tuple[int, ...], gradient: bool) -> Iterator[Tensor]:
    """Each dimension of size 0 in turn."""
    formats = (torch.contiguous_format, torch.channels_last if len(size) == 4 else torch.channels_last_3d)
    for i, dtype, memory_format in itertools.product(range(len(size)), DTYPES, formats):
        x = torch.empty([0 if j == i else n for j, n in enumerate(size)], dtype=dtype)
        x = x.contiguous(memory_format=memory_format).requires_grad_(gradient)
        assert x.data_ptr() == 0
        yield x


def _outcome(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Sizes and dtypes of outputs and of the input's gradient; None if it raises, and NotImplemented for the dtype."""
    x = x.detach().requires_grad_(x.requires_grad)
    try:
        outputs = [y for y in tree_leaves(function(x)) if isinstance(y, Tensor)]
        if x.requires_grad:
            torch.stack([y.float().sum() for y in outputs if y.requires_grad]).sum().backward()
    except NotImplementedError:
        return NotImplemented
    except (RuntimeError, ValueError, IndexError):
        return None
    return [(tuple(y.shape), y.dtype) for y in (*outputs, x.grad) if y is not None]


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str, gradient: bool, tier: str) -> None:
    stock, ours = IMAGES[name]
    for x in _empties((2, 8, 4, 4), gradient):
        expected = _outcome(stock, x)
        assert expected is NotImplemented or _outcome(ours, x) == expected, tuple(x.shape)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name: str, gradient: bool, tier: str) -> None:
    stock, ours = VOLUMES[name]
    for x in _empties((2, 8, 4, 4, 4), gradient):
        expected = _outcome(stock, x)
        assert expected is NotImplemented or _outcome(ours, x) == expected, tuple(x.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_grouped_linear(dtype: torch.dtype, tier: str) -> None:
    for rows, groups, features, outputs in itertools.product((0, 3), (1, 2), (0, 5), (0, 4)):
        x = torch.ones(rows, groups, features, dtype=dtype, requires_grad=True)
        weight = torch.ones(groups, outputs, features, dtype=dtype, requires_grad=True)
        bias = torch.ones(groups, outputs, dtype=dtype, requires_grad=True)
        y = F.grouped_linear(x, weight, bias)
        y.sum().backward()
        assert torch.equal(y, torch.full((rows, groups, outputs), 1.0 + features, dtype=dtype))
        assert torch.equal(weight.grad, torch.full_like(weight, rows))
        assert torch.equal(bias.grad, torch.full_like(bias, rows))
        assert torch.equal(x.grad, torch.full_like(x, outputs))
