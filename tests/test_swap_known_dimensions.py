# SPDX-License-Identifier: MIT
"""The number of dimensions of a view whose sizes are written one by one needs neither a guard nor an example."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from spellings import Wrapped, by_size
from swapping import images, same


class Unknown(nn.Module):
    """Of whose output a capture knows nothing."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_contiguous():
            x = x.contiguous()
        return torch.softmax(x.flatten(1), 1).reshape(x.shape)


def of_the_rest(x: Tensor, y: Tensor) -> Tensor:
    splits = y.view(y.size(0), 2, -1, *y.view(y.size(0), -1, 4, 8).shape[2:])
    return by_size(x, 2) * splits.sum(1).mean()


def of_a_list(x: Tensor, y: Tensor) -> Tensor:
    a, b, c = y.reshape([y.size(0), -1, 8]).shape
    return by_size(x, 2) * (a + b + c)


def asked(x: Tensor, y: Tensor) -> Tensor:
    y = y.view(y.size(0), -1, 32)
    return by_size(x, len(range(y.dim())) * 2 // 3) * len(y.size()) * len(range(y.ndim))


def of_a_size(x: Tensor, y: Tensor) -> Tensor:
    return by_size(x, 3 - len(range(y.view(x.shape).dim())) % 2)


class Net(Wrapped):
    def __init__(self, body: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(lambda x: x)
        self.unknown, self.of = Unknown(), body

    def forward(self, x: Tensor) -> Tensor:
        return self.of(x, self.unknown(x))


@pytest.mark.parametrize("body", [of_the_rest, of_a_list, asked])
def test_known_dimensions(body: Callable[[Tensor, Tensor], Tensor]) -> None:
    stock = Net(body)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert [s.rule for s in opswap.report(model).swapped] == ["channel_shuffle"], str(opswap.report(model))
    for height in (4, 8):
        same(model, stock, images(2, 12, height, 8))


def test_a_single_size_may_have_several_dimensions() -> None:
    stock = Net(of_a_size)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    same(model, stock, images(2, 12, 4, 8))
