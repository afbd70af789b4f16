# SPDX-License-Identifier: MIT
"""A 1 x 1 convolution by itself in a frozen model: its weight is packed once, and what changes is noticed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import counts, kernels
from opswap import _core
from opswap.nn.frozen import FROZEN

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not _core.chain_leads(), reason="the tier in use has no chains"),
]

LAST = torch.channels_last


class Head(nn.Module):
    """As LPRNet's: no normalisation or activation behind it."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(48, 24, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean(2)


def frozen(stock: nn.Module) -> nn.Module:
    return opswap.freeze(opswap.swap(copy.deepcopy(stock), memory_format=LAST))


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 48, 5, 7).contiguous(memory_format=LAST)


def assert_near(model: nn.Module, stock: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_packed_once(bias: bool) -> None:
    stock = Head(bias).eval()
    model = frozen(stock)
    opswap.reset_stats()
    assert_near(model, stock, images())
    kept = model.conv.__dict__[FROZEN].folded
    assert kept is not None
    for count in (2, 2, 1, 3):  # the second of a size is recorded, the third a replay
        assert_near(model, stock, images(count))
        assert model.conv.__dict__[FROZEN].folded is kept
    assert counts() == ({"conv_chain": 5}, {})


def _write(model: nn.Module) -> None:
    model.conv.weight.mul_(2)


def _bias(model: nn.Module) -> None:
    model.conv.bias.data.add_(1)


def _load(model: nn.Module) -> None:
    model.load_state_dict({key: torch.full_like(t, 0.25) for key, t in model.state_dict().items()})


def _stride(model: nn.Module) -> None:
    model.conv.stride = (2, 1)


def _number(model: nn.Module) -> None:
    model.conv.stride = 2


def _another(model: nn.Module) -> None:
    torch.manual_seed(5)
    model.conv = nn.Conv2d(48, 24, 1)


CHANGES: list[Callable[[nn.Module], None]] = [_write, _bias, _load, _stride, _number, _another]


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_changes_are_noticed(change: Callable[[nn.Module], None]) -> None:
    stock = Head().eval()
    model = frozen(stock)
    for _ in range(4):
        assert_near(model, stock, images())
    for m in (model, stock):
        change(m)
    for _ in range(4):
        assert_near(model, stock, images())


def test_with_a_graph_and_in_training() -> None:
    stock = Head().eval()
    model = frozen(stock)
    opswap.reset_stats()
    assert_near(model, stock, images().requires_grad_())
    assert kernels("pointwise_conv2d") == 1 and kernels("conv_chain") == 0
    for m in (model, stock):
        m.train()
    with torch.no_grad():
        assert_near(model, stock, images())
    assert kernels("conv_chain") == 0
    x = images()
    for m in (model, stock):
        m.eval()
        m(x).sum().backward()
        with torch.no_grad():
            m.conv.weight.sub_(m.conv.weight.grad)
    with torch.no_grad():
        assert_near(model, stock, images())


@torch.no_grad()
def test_other_inputs() -> None:
    """Contiguous images, float64 and 16 bits run as they do unfrozen."""
    stock = Head().eval()
    model = frozen(stock)
    assert_near(model, stock, images().contiguous())
    for m in (model, stock):
        m.double()
    assert_near(model, stock, images().double())
    with torch.autocast("cpu", torch.bfloat16):
        y = frozen(Head().eval())(images())
    assert y.dtype is torch.bfloat16


@torch.no_grad()
def test_unfrozen_again() -> None:
    stock = Head().eval()
    model = frozen(stock)
    assert_near(model, stock, images())
    opswap.unfreeze(model)
    opswap.reset_stats()
    assert_near(model, stock, images())
    assert kernels("pointwise_conv2d") == 1
