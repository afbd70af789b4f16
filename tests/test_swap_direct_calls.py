# SPDX-License-Identifier: MIT
"""Forwards that call the forward of a child directly, loop until a size, or ask where a tensor lies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

import opswap
from spellings import by_size
from step import assert_equal

Body = Callable[[Any, Tensor], Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.norm = nn.BatchNorm2d(12)
        self.drop = nn.Dropout2d(0.5)
        self.pool = nn.MaxPool2d(2)
        self.layers = nn.Sequential(nn.Conv2d(12, 12, 1), nn.Dropout(0.5), nn.BatchNorm2d(12))


def one_by_one(s: Any, x: Tensor) -> Tensor:
    for layer in s.layers:
        x = layer.forward(x)
    return by_size(F.relu(x), 2)


def until_small(s: Any, x: Tensor) -> Tensor:
    x = torch.relu(s.norm(x))
    while x.size(2) > 2:
        x = s.pool(x)
    return x


def parts(x: Tensor) -> tuple[Tensor, ...]:
    return by_size(x, 2).chunk(2, 1)


DIRECT: dict[str, Body] = {
    "norm.forward": lambda s, x: by_size(F.relu(s.norm.forward(s.conv(x))), 2),
    "of its class": lambda s, x: by_size(F.relu(nn.BatchNorm2d.forward(s.norm, x)), 2),
    "of a base": lambda s, x: by_size(F.relu(nn.modules.batchnorm._BatchNorm.forward(s.norm, x)), 2),
    "drop.forward": lambda s, x: by_size(s.drop.forward(x), 2),
    "drop of its class": lambda s, x: by_size(nn.Dropout2d.forward(s.drop, x), 2),
    "one by one": one_by_one,
    "one by one in a Sequential": lambda s, x: by_size(nn.Sequential.forward(s.layers, x), 2),
}
PLACE: dict[str, Body] = {
    "stride": lambda s, x: [p * p.stride(0) for p in parts(x)],
    "offset": lambda s, x: [p * p.storage_offset() for p in parts(x)],
    "all strides": lambda s, x: [p * p.stride()[0] for p in parts(x)],
    "a part of a part": lambda s, x: [p[:, :2] * p[:, 1:].storage_offset() for p in parts(x)],
    "is_contiguous": lambda s, x: [p * (2 if p.is_contiguous() else 3) for p in parts(x)],
}


def made(body: Body) -> tuple[nn.Module, nn.Module]:
    cls = type("Made", (Net,), {"forward": lambda self, x: body(self, x)})
    stock = cls()
    return stock, opswap.swap(copy.deepcopy(stock), exact=True)


def result(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    found = model(x)
    return [*(found if isinstance(found, list) else [found]), *model.buffers()]


@pytest.mark.parametrize("name", DIRECT)
def test_a_child_called_directly_follows_its_mode_and_its_forward(name: str) -> None:
    stock, model = made(DIRECT[name])
    x = torch.randn(2, 12, 8, 6)
    for training in (True, False):
        assert_equal(result(model.train(training), x), result(stock.train(training), x))
    for m in (stock, model):  # of the children alone
        m.norm.train(), m.drop.train(), m.layers.train()
    assert_equal(result(model, x), result(stock, x))
    for m in (stock, model):
        m.norm.forward = m.drop.forward = lambda z: z * 3
    assert_equal(result(model, x), result(stock, x))


@pytest.mark.parametrize("name", PLACE)
def test_where_a_part_lies(name: str) -> None:
    stock, model = made(PLACE[name])
    x = torch.randn(2, 12, 8, 6)
    assert_equal(result(model, x), result(stock, x))


def test_a_loop_that_ends_at_a_size() -> None:
    stock, model = made(until_small)
    assert any("without end" in s.reason for s in opswap.report(model).kept)
    for size in (2, 8, 16):
        x = torch.randn(2, 12, size, size)
        assert_equal(result(model, x), result(stock, x))


def test_a_converted_model_under_vmap() -> None:
    stock = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)).eval()
    model = opswap.swap(copy.deepcopy(stock), exact=True, memory_format=torch.channels_last)
    x = torch.randn(5, 4, 3, 16, 16)
    torch.testing.assert_close(vmap(model)(x), vmap(stock)(x), rtol=1e-4, atol=1e-4)
