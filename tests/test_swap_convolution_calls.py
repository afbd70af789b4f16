# SPDX-License-Identifier: MIT
"""Convolutions that a layer of the user's own calls as a function: as near to float64 as torch's, or left to torch."""

from __future__ import annotations

import copy
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
from step import outcome

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
    ours, theirs = outcome(lambda: model(x)), outcome(lambda: stock(x))
    if isinstance(theirs, Tensor):
        torch.testing.assert_close(ours, theirs)
    else:
        assert ours[0] is theirs[0]


def test_without_example_inputs_the_weight_is_that_of_the_module() -> None:
    rules = [s.rule for s in opswap.report(opswap.swap(net(Own(16, 24, 1)))).swapped]
    assert "pointwise_conv" in rules
    rules = [s.rule for s in opswap.report(opswap.swap(net(Standardised(16, 24, 1)))).swapped]
    assert "pointwise_conv" not in rules
