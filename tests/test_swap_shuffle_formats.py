# SPDX-License-Identifier: MIT
"""Shuffles in networks that view their features as rows at the end, as ShuffleNet and IGCV3 of pytorchcv."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near
from opswap.ops.depthwise import depthwise_wins

LAST = torch.channels_last


class Shuffle(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.size()
        x = x.view(n, self.groups, c // self.groups, h, w)
        x = torch.transpose(x, 1, 2).contiguous()
        return x.view(n, c, h, w)


class Block(nn.Module):
    """A convolution that is no module of torch to the forward that calls it."""

    def __init__(self, channels: int, kernel: int, groups: int, act: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.act = nn.ReLU6(inplace=True) if act else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return x if self.act is None else self.act(x)


class Unit(nn.Module):
    def __init__(self, channels: int, groups: int, act: bool) -> None:
        super().__init__()
        self.first = Block(channels, 1, groups, act)
        self.shuffle = Shuffle(groups)
        self.deep = Block(channels, 3, channels, True)

    def forward(self, x: Tensor) -> Tensor:
        return self.deep(self.shuffle(self.first(x))) + x


class Net(nn.Module):
    """Its pool leaves one pixel of images of 8 x 8, so that the view works in every memory format."""

    def __init__(self, groups: int, act: bool) -> None:
        super().__init__()
        units = (Unit(12, groups, act) for _ in range(2))
        self.features = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), *units, nn.AvgPool2d(8))
        self.output = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.output(x.view(x.size(0), -1))


def images(size: int = 8, memory_format: torch.memory_format = LAST) -> Tensor:
    return torch.randn(3, 3, size, size).contiguous(memory_format=memory_format)


def ran(model: nn.Module, x: Tensor) -> dict[str, int]:
    """How many replacements of each rule ran."""
    found: dict[str, int] = {}
    for outcome in opswap.explain(model, x).outcomes:
        found[outcome.rule] = found.get(outcome.rule, 0) + outcome.ran
    return found


@pytest.mark.parametrize("act", [False, True])
@pytest.mark.parametrize(("groups", "rule"), [(3, "channel_shuffle"), (1, "identity")])
def test_shuffles_keep_channels_last(groups: int, rule: str, act: bool) -> None:
    stock = Net(groups, act).train().to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock))
    assert ran(model, images())[rule] == 2
    if depthwise_wins():
        assert ran(model, images())["depthwise_conv"] == 2
    assert_model_as_near(model, stock, lambda: (images(),))


@pytest.mark.parametrize("groups", [3, 1])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST], ids=str)
def test_views_work_where_they_do_in_stock(groups: int, memory_format: torch.memory_format) -> None:
    """Of 16 x 16 four pixels are left, which a view joins if the features are contiguous: if the weights are."""
    stock = Net(groups, True).train()
    stock.output = nn.Linear(48, 5)
    stock = stock.to(memory_format=memory_format)
    model = opswap.swap(copy.deepcopy(stock))
    x = images(16, memory_format)
    try:
        copy.deepcopy(stock)(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error)[:20]):
            model(x)
    else:
        assert_model_as_near(model, stock, lambda: (images(16, memory_format),))


class Written(nn.Module):
    """The result of the shuffle is written to, its input read afterwards."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.conv, self.shuffle = nn.Conv2d(3, 12, 3), Shuffle(groups)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu_()
        y = self.shuffle(x)
        return y.add_(1) * 2 + x


@pytest.mark.parametrize("groups", [12, 3, 1])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST], ids=str)
def test_writes_after_it(groups: int, memory_format: torch.memory_format) -> None:
    """torch's is a view of contiguous memory if there is one group, or one channel per group, and a copy elsewhere."""
    stock = Written(groups).to(memory_format=memory_format)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    x = images(memory_format=memory_format)
    assert torch.equal(model(x), stock(x))


class Branching(nn.Module):
    """A head that cannot be captured, since values decide."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * 2 if x.sum() > 0 else x).view(x.size(0), -1)


class ToBranching(nn.Module):
    def __init__(self, relu: bool) -> None:
        super().__init__()
        self.conv, self.shuffle, self.head, self.relu = nn.Conv2d(3, 12, 3), Shuffle(3), Branching(), relu

    def forward(self, x: Tensor) -> Tensor:
        x = self.shuffle(self.conv(x))
        return self.head(torch.relu(x) if self.relu else x)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, LAST], ids=str)
def test_views_of_a_shuffle_in_code_that_is_not_known(relu: bool, memory_format: torch.memory_format) -> None:
    stock = ToBranching(relu).to(memory_format=memory_format)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    x = images(memory_format=memory_format)
    assert torch.equal(model(x), stock(x))


class TorchShuffle(nn.Module):
    """torch's shuffle keeps channels_last: that the pool's pixel can be viewed does not restrict other shuffles."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shuffle = nn.Conv2d(3, 12, 3, padding=1), Shuffle(3)
        self.second, self.pool = nn.Conv2d(12, 12, 1), nn.AvgPool2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.shuffle(self.first(x)))
        x = self.pool(nn.functional.channel_shuffle(x, 3))
        return x.view(x.size(0), -1)


@pytest.mark.usefixtures("every_rule_applies")
def test_torchs_shuffle_before_a_view_restricts_no_other() -> None:
    stock = TorchShuffle().train().to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock))
    assert ran(model, images())["channel_shuffle"] == 1
    x = images()
    torch.testing.assert_close(model(x), stock(x))
