# SPDX-License-Identifier: MIT
"""The rule for dense convolutions: what is replaced, what is kept and why, and a network that trains with it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from counted import counts
from nearness import assert_model_as_near, assert_trains_as_near
from opswap.ops import conv as family
from opswap.swap.rules import DEFAULT
from step import assert_equal, outputs_and_gradients
from twins import twins

LAST = torch.channels_last
RULES = [rule for rule in DEFAULT if rule.name == "conv2d"]
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="left to torch on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]


@pytest.fixture(autouse=True)
def small_images_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "_FEWEST_PRODUCTS", 0)
    opswap.reset_stats()


class Own(nn.Conv2d):
    """A class of its own, with torch's forward."""


class Standardised(nn.Conv2d):
    """Weights with mean 0 in each channel, convolved by torch's function."""

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return T.conv2d(input, weight, self.bias, self.stride, self.padding, self.dilation)


def images(size: int = 9) -> Tensor:
    return torch.randn(2, 32, size, size).contiguous(memory_format=LAST)


TAKEN = [
    nn.Conv2d(32, 24, 3),
    nn.Conv2d(32, 24, 3, 2, 1, bias=False),
    nn.Conv2d(32, 40, (1, 5), padding="same", dilation=2),
    nn.Conv2d(32, 24, (2, 1), padding="valid"),
    nn.Conv2d(32, 24, 1, 2, 1),
]
KEPT: list[tuple[nn.Module, str]] = [
    (nn.Conv2d(32, 32, (15, 1)), r"a window of \(15, 1\): .* up to 13 taps"),
    (nn.Conv2d(32, 24, 3, padding=1, padding_mode="circular"), "zeros"),
    (nn.Conv2d(32, 24, 4, padding="same"), "differs between both sides"),
]
AS_FAST = {"avx2": nn.Conv2d(512, 256, 1, padding=1), "avx512": nn.Conv2d(16, 24, 3)}
OTHERS = [
    nn.Conv2d(3, 7, 3),
    nn.Conv2d(32, 24, 3, groups=2),
    nn.Conv1d(32, 24, 3),
    nn.ConvTranspose2d(32, 24, 3),
]


@pytest.mark.parametrize("conv", TAKEN, ids=str)
def test_taken(conv: nn.Conv2d) -> None:
    stock = nn.Sequential(copy.deepcopy(conv), nn.ReLU()).to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    (site,) = opswap.report(model).swapped
    assert (site.path, site.rule, site.exact) == ("0", "conv2d", False)
    outputs_and_gradients(model, images())
    assert counts() == ({"conv2d": 1, "conv2d_backward": 1}, {})
    assert_model_as_near(model, stock, lambda: (images(),))
    opswap.reset_stats()
    x = images().contiguous()
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
    with torch.no_grad():
        x = images()
        assert torch.equal(model(x), stock(x))
    assert counts() == ({}, {})
    assert type(opswap.unswap(model)[0]) is nn.Conv2d


@pytest.mark.parametrize(("conv", "reason"), KEPT, ids=str)
def test_kept(conv: nn.Module, reason: str) -> None:
    report = opswap.scan(nn.Sequential(conv), rules=RULES)
    (site,) = report.kept
    assert not report.swapped and re.search(reason, site.reason)


def test_kept_where_torch_is_as_fast() -> None:
    conv = AS_FAST[opswap.isa.current()]
    (site,) = opswap.scan(nn.Sequential(conv), rules=RULES).kept
    channels = f"{conv.in_channels} channels in, {conv.out_channels} out"
    assert site.reason == f"{channels}, a window of {conv.kernel_size}: torch is as fast"


@pytest.mark.parametrize("conv", OTHERS, ids=str)
def test_not_about(conv: nn.Module) -> None:
    report = opswap.scan(nn.Sequential(conv), rules=RULES)
    assert not report.swapped and not report.kept


def test_exact_swaps_leave_it() -> None:
    assert not opswap.scan(nn.Sequential(nn.Conv2d(32, 24, 3)), exact=True).swapped


def test_1x1_that_the_other_kernels_leave() -> None:
    large, small = nn.Conv2d(512, 512, 1), nn.Conv2d(64, 64, 1)
    for tier in ("avx2", opswap.isa.current()):
        with opswap.isa.limit(tier):
            found = {s.path: s.rule for s in opswap.scan(nn.Sequential(large, small)).swapped}
        assert found == {"0": "conv2d", "1": "pointwise_conv"}


@pytest.mark.parametrize("grads", [True, False])
@pytest.mark.parametrize("options", [{"stride": 2}, {"padding": "same"}, {"padding": "valid", "stride": 2}])
def test_1x1_of_a_large_weight_and_few_pixels(grads: bool, options: dict[str, Any]) -> None:
    """By the kernels of 1 x 1, which torch's library is slower than there; more pixels if each image has one."""
    stock = nn.Sequential(nn.Conv2d(512, 260, 1, **options)).to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
    sizes = {(2, 5, 4): True, (1, 2, 3): False, (32, 1, 1): True, (4, 1, 1): False, (9, 33, 33): False}
    for size, few in sizes.items():
        x = torch.randn(size[0], 512, *size[1:])
        opswap.reset_stats()
        with torch.set_grad_enabled(grads):
            ours, theirs = model(x), stock(x)
        assert ("pointwise_conv2d" in counts()[0]) == few
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert_model_as_near(model, stock, lambda: (torch.randn(2, 512, 4, 5),))


@pytest.mark.parametrize("make", [Own, Standardised])
def test_calls_of_the_function(make: Callable[..., nn.Module]) -> None:
    stock = nn.Sequential(make(32, 40, 3, 2, 1), nn.ReLU()).to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock), rules=RULES, example_inputs=(images(),))
    assert [s.rule for s in opswap.report(model).swapped] == ["conv2d"]
    assert_model_as_near(model, stock, lambda: (images(),))
    assert counts()[0]["conv2d"] == counts()[0]["conv2d_backward"] > 0
    for x in (images().contiguous(), images(30)[:, :, ::3], images()[:0]):
        assert model(x).shape == stock(x).shape
    for given, reason in (((32, 40, (1, 14)), "up to 13 taps"), ((32, 40, 3, 1, 0, 1, 2), "")):
        report = opswap.scan(nn.Sequential(Own(*given)), rules=RULES, example_inputs=(images(15),))
        assert not report.swapped and [reason in s.reason for s in report.kept] == [True] * bool(reason)


def test_settings_after_the_swap_and_copies() -> None:
    model = opswap.swap(nn.Sequential(nn.Conv2d(32, 24, 3)).to(memory_format=LAST), rules=RULES)
    for twin in twins(model):
        opswap.reset_stats()
        assert torch.equal(twin(x := images()), model(x)) and counts()[0] == {"conv2d": 2}
    model[0].stride = (2, 2)
    assert model(images()).shape == (2, 24, 4, 4)
    model[0].weight, model[0].bias = nn.Parameter(torch.ones(3, 32, 1, 1)), None
    x = images()
    torch.testing.assert_close(model(x), x[:, :, ::2, ::2].sum(1, keepdim=True).expand(2, 3, 5, 5))


def lprnet_like() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 32, 1),
        nn.Conv2d(32, 32, (3, 1), padding=(1, 0)),
        nn.Conv2d(32, 32, (1, 3), padding=(0, 1)),
        nn.Conv2d(32, 64, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 96, (1, 4)),
        nn.ReLU(),
        nn.Conv2d(96, 34, (13, 1)),
        nn.ReLU(),
    ).to(memory_format=LAST)


def test_losses_of_several_steps() -> None:
    """A network trained with it stays as near to float64 as the stock one does."""
    stock = lprnet_like()
    model = opswap.swap(copy.deepcopy(stock))
    assert sum(s.rule == "conv2d" for s in opswap.report(model).swapped) >= 5

    x = torch.empty(3, 3, 18, 25).contiguous(memory_format=LAST)
    assert_trains_as_near(model, stock, lambda: torch.randn_like(x), lr=0.05, momentum=0.9)
    assert counts()[0]["conv2d_backward"] >= 25
