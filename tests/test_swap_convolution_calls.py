# SPDX-License-Identifier: MIT
"""Convolutions that a layer of the user's own calls as a function: as near to float64 as torch's, or left to torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near
from opswap.ops.depthwise import depthwise_wins
from opswap.ops.pointwise import pointwise_wins
from step import assert_same_outcome

LAST = torch.channels_last


pytestmark = [
    pytest.mark.skipif(not (pointwise_wins() and depthwise_wins()), reason="left to torch on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]


class Own(nn.Conv2d):
    """A class of its own, with torch's forward."""


class Standardised(nn.Conv2d):
    """Weights with mean 0 and variance 1 in each channel."""

    def forward(self, input: Tensor) -> Tensor:
        weight = F.batch_norm(
            self.weight.reshape(1, self.out_channels, -1), None, None, training=True, eps=1e-6
        )
        return F.conv2d(
            input,
            weight.reshape_as(self.weight),
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
        )


class Padded(nn.Conv2d):
    """More zeros behind than before, as TensorFlow pads."""

    def forward(self, input: Tensor) -> Tensor:
        padded = F.pad(input, (0, 1, 0, 1))
        return torch.conv2d(padded, self.weight, self.bias, self.stride, padding=0, groups=self.groups)


def zeros_of(size: int, taps: int, stride: int, ceil: Callable[[float], int]) -> int:
    """Zeros in both directions for an output of size / stride, rounded up."""
    if isinstance(size, Tensor):
        return (ceil(size / stride) - 1).mul(stride).add(taps).sub(size).clamp(min=0)
    return max((ceil(size / stride) - 1) * stride + taps - size, 0)


class Same(nn.Conv2d):
    """As many zeros as TensorFlow adds, in the spelling of timm's `pad_same`."""

    ceil = staticmethod(math.ceil)

    def forward(self, input: Tensor) -> Tensor:
        height, width = input.size()[-2:]
        taps = self.weight.shape[-2:]
        rows = zeros_of(height, taps[0], self.stride[0], self.ceil)
        columns = zeros_of(width, taps[1], self.stride[1], self.ceil)
        edges = (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)
        return F.conv2d(
            F.pad(input, edges), self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups
        )


def images(channels: int = 16, size: int = 9) -> Tensor:
    return torch.randn(2, channels, size, size).contiguous(memory_format=LAST)


def net(conv: nn.Module) -> nn.Module:
    return nn.Sequential(conv, nn.ReLU()).to(memory_format=LAST)


REPLACED: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "1x1": ("pointwise_conv", lambda: Own(16, 24, 1)),
    "1x1 with a stride": ("pointwise_conv", lambda: Own(16, 24, 1, stride=(2, 3))),
    "1x1 without bias": ("pointwise_conv", lambda: Own(16, 24, 1, bias=False)),
    "standardised": ("pointwise_conv", lambda: Standardised(16, 24, 1)),
    "depthwise": ("depthwise_conv", lambda: Own(16, 16, 3, 2, 1, groups=16)),
    "same": ("depthwise_conv", lambda: Own(16, 16, 5, padding="same", groups=16, bias=False)),
    "a window of 7 x 7": ("depthwise_conv", lambda: Own(16, 16, 7, 1, 3, groups=16)),
    "dilated": ("depthwise_conv", lambda: Own(16, 16, 5, 1, "same", 2, groups=16)),
    "valid": ("depthwise_conv", lambda: Own(16, 16, 3, padding="valid", groups=16)),
    "same with a stride": ("depthwise_conv", lambda: Same(16, 16, 3, 2, groups=16)),
    "same, 1x1": ("pointwise_conv", lambda: Same(16, 24, 1, 2)),
    "padded": ("depthwise_conv", lambda: Padded(16, 16, 3, 2, groups=16)),
    "of standardised weights": ("depthwise_conv", lambda: Standardised(16, 16, 3, 1, 1, groups=16)),
}


@pytest.mark.parametrize("name", REPLACED)
def test_replaced(name: str) -> None:
    rule, make = REPLACED[name]
    stock = net(make())
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(images(),))
    assert [s.rule for s in opswap.report(model).swapped if s.rule.endswith("_conv")] == [rule]
    assert_model_as_near(model, stock, lambda: (images(),))
    opswap.reset_stats()
    y = model(images())
    assert opswap.stats()["kernel"][f"{rule.removesuffix('_conv')}_conv2d"] == 1
    assert y.stride() == stock(images()).stride()
    for other in (images().contiguous(), images().double(), images(size=30)[:, :, ::3], images()[:0]):
        for m in (model, stock):
            m.to(other.dtype)
        theirs = stock(other)
        torch.testing.assert_close(model(other), theirs)
        assert model(other).stride() == theirs.stride()


class Words(nn.Module):
    """Padding in words, and a weight that may get another size."""

    def __init__(self, size: tuple[int, ...], groups: int) -> None:
        super().__init__()
        self.weight, self.groups = nn.Parameter(torch.randn(size)), groups

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, None, 1, "same", 1, self.groups)


@pytest.mark.parametrize("taps", [(5, 5), (3, 7), (1, 1), (4, 4)])
@pytest.mark.parametrize(("size", "groups"), [((64, 64, 3, 3), 1), ((64, 1, 3, 3), 64), ((24, 64, 1, 1), 1)])
def test_a_weight_of_another_size(size: tuple[int, ...], groups: int, taps: tuple[int, int]) -> None:
    stock = net(Words(size, groups))
    x = torch.randn(4, 64, 28, 28).contiguous(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    weight = torch.randn(*size[:2], *taps).contiguous(memory_format=LAST)
    for m in (model, stock):
        m[0].weight = nn.Parameter(weight.clone(memory_format=torch.preserve_format))
    torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)


def test_zeros_for_any_size() -> None:
    """How many there are depends on the size, which the capture of a forward leaves open."""
    stock = net(Same(16, 16, 3, 2, groups=16))
    model = opswap.swap(copy.deepcopy(stock))
    for height in (8, 9):
        for width in (10, 11):
            x = torch.randn(2, 16, height, width).contiguous(memory_format=LAST)
            opswap.reset_stats()
            torch.testing.assert_close(model(x), stock(x))
            assert opswap.stats()["kernel"] == {"depthwise_conv2d": 1}


def test_a_size_is_no_tensor() -> None:
    """But the capture does not say what else it is: `x.size()[1:]` is a tuple, `x.size()[1]` an int."""

    class Asks(nn.Module):
        def __init__(self, kind: type) -> None:
            super().__init__()
            self.conv, self.kind = nn.Conv2d(16, 16, 3, padding=1, groups=16), kind

        def forward(self, x: Tensor) -> Tensor:
            sizes = x.size()[1:]
            return self.conv(x) if isinstance(sizes, self.kind) else self.conv(x) + 1

    for kind, answered in ((Tensor, True), (tuple, False), (int, False)):
        stock = Asks(kind).to(memory_format=LAST)
        model = opswap.swap(copy.deepcopy(stock))
        x = images()
        torch.testing.assert_close(model(x), stock(x))
        refused = [s.reason for s in opswap.report(model).kept if "type of a result" in s.reason]
        assert bool(refused) is not answered, kind


KEPT: dict[str, Callable[[], nn.Module]] = {
    "3x3": lambda: Own(16, 16, 3),
    "padding": lambda: Own(16, 16, 1, padding=1),
    "groups": lambda: Own(16, 16, 1, groups=4),
    "a dilation": lambda: Own(16, 16, 3, 2, dilation=2, groups=16),
    "several outputs": lambda: Own(16, 32, 3, groups=16),
    "reflected": lambda: Own(16, 16, 3, padding=1, padding_mode="reflect", groups=16),
    "a large window": lambda: Own(16, 16, 11, 1, 5, groups=16),
    "a large weight": lambda: Own(16, 1 << 13, 1),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    stock = net(KEPT[name]())
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(images(),))
    found = [s for s in opswap.report(model).swapped if s.rule.endswith("_conv")]
    if name == "reflected":  # the zeros around are no part of the convolution then
        assert [s.rule for s in found] == ["depthwise_conv"]
    else:
        assert not found
    whole = [s.rule for s in opswap.report(model).swapped] == ["conv2d"]
    assert whole or name != "padding"
    if name in ("a dilation", "a large window") or (name == "a large weight" and not whole):
        assert any(
            "kernels support" in s.reason or "torch is as fast" in s.reason for s in opswap.report(model).kept
        )
    assert_model_as_near(model, stock, lambda: (images(),))


CHANGES: dict[str, Callable[[nn.Conv2d], Any]] = {
    "a larger window": lambda c: setattr(c, "weight", nn.Parameter(torch.randn(24, 16, 3, 3))),
    "other channels": lambda c: setattr(c, "weight", nn.Parameter(torch.randn(24, 8, 1, 1))),
    "more groups": lambda c: (
        setattr(c, "groups", 2),
        setattr(c, "weight", nn.Parameter(torch.randn(24, 8, 1, 1))),
    ),
    "a stride": lambda c: setattr(c, "stride", (2, 2)),
    "no bias": lambda c: setattr(c, "bias", None),
    "another dtype": lambda c: c.double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_noticed(change: str) -> None:
    stock = net(Own(16, 24, 1))
    model = opswap.swap(copy.deepcopy(stock))
    assert any(s.rule == "pointwise_conv" for s in opswap.report(model).swapped)
    for m in (stock, model):
        torch.manual_seed(1)
        CHANGES[change](m[0])
    x = images()
    assert_same_outcome(lambda: model(x), lambda: stock(x), 0)


def test_without_example_inputs_the_weight_is_that_of_the_module() -> None:
    rules = [s.rule for s in opswap.report(opswap.swap(net(Own(16, 24, 1)))).swapped]
    assert "pointwise_conv" in rules
    rules = [s.rule for s in opswap.report(opswap.swap(net(Standardised(16, 24, 1)))).swapped]
    assert "pointwise_conv" not in rules
