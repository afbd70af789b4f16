# SPDX-License-Identifier: MIT
"""Activations as modules of the user's own behind a BatchNorm, as transformers and pytorchcv have them."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near


class Silu(nn.Module):
    def forward(self, input: Tensor) -> Tensor:
        return F.silu(input)


class Gated(nn.Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(x.sigmoid()) if self.inplace else x * x.sigmoid()


class Leaky(nn.Module):
    def __init__(self, slope: float = 0.3, inplace: bool = True) -> None:
        super().__init__()
        self.slope, self.inplace = slope, inplace

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.slope, self.inplace)


class Scaled(nn.Module):
    """No activation: it has a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) * self.scale


class Block(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 1)
        self.norm = nn.BatchNorm2d(6)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


def in_a_sequential(act: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), act)


def joined(model: nn.Module) -> bool:
    return any(s.rule == "batch_norm_act" for s in opswap.report(model).swapped)


@pytest.mark.parametrize("make", [Block, in_a_sequential])
@pytest.mark.parametrize("act", [Silu, Gated, Leaky])
def test_it_is_joined(act: Callable[[], nn.Module], make: Callable[[nn.Module], nn.Module]) -> None:
    stock = make(act())
    model = opswap.swap(copy.deepcopy(stock))
    assert joined(model)
    x = torch.randn(3, 6, 9, 9)
    explained = str(opswap.explain(model, x))
    assert any("batch_norm_act" in line and " ran" in line for line in explained.splitlines())
    assert_model_as_near(model, stock, lambda: (torch.randn(3, 6, 9, 9),))


@pytest.mark.parametrize("act", [Scaled, lambda: Gated(True)])
def test_what_is_none_stays(act: Callable[[], nn.Module]) -> None:
    assert not joined(opswap.swap(Block(act())))


def test_what_changes_is_noticed() -> None:
    stock = Block(Leaky())
    model = opswap.swap(copy.deepcopy(stock))
    x = torch.randn(3, 6, 9, 9)
    seen: list[nn.Module] = []
    for change in (
        lambda m: setattr(m.act, "slope", 0.5),
        lambda m: setattr(m, "act", nn.Tanh()),
        lambda m: m.act.register_forward_hook(lambda m, a, out: seen.append(m) or out + 1),
    ):
        for m in (stock, model):
            change(m)
        torch.testing.assert_close(model(x), stock(x))
    assert len(seen) == 2


def test_a_hook_before_the_swap_fires() -> None:
    stock = Block(Silu())
    stock.act.register_forward_hook(lambda m, a, out: out + 1)
    model = opswap.swap(copy.deepcopy(stock))
    x = torch.randn(3, 6, 9, 9)
    torch.testing.assert_close(model(x), stock(x))
