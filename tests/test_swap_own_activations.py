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


class ConvNorm(nn.Sequential):
    """timm's: a block that ends with a BatchNorm, with an Identity behind it or not."""

    def __init__(self, *after: nn.Module) -> None:
        super().__init__(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), *after)


class Calls(nn.Module):
    """A forward that calls an activation of a block's result, as LeViT's and RepViT's."""

    def __init__(self, block: nn.Module, act: Callable[[Tensor], Tensor], used_twice: bool = False) -> None:
        super().__init__()
        self.block, self.act, self.used_twice = block, act, used_twice

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        return self.act(x) + x if self.used_twice else self.act(x)


class ActsFirst(nn.Module):
    """A block that begins with the activation of what the block before it returns, as Xception's."""

    def __init__(self, act: nn.Module, used_twice: bool = False) -> None:
        super().__init__()
        self.act, self.conv, self.used_twice = act, nn.Conv2d(6, 6, 1), used_twice

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.act(x))
        return y + x if self.used_twice else y


class Darts(nn.Module):
    """ReLU, convolution and BatchNorm: two of these, one after the other, are a separable convolution of DARTS."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.conv, self.norm = nn.ReLU(), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.act(x)))


ENDS: dict[str, Callable[[], nn.Module]] = {
    "in a Sequential": lambda: nn.Sequential(ConvNorm(), nn.GELU()),
    "an Identity behind it": lambda: nn.Sequential(ConvNorm(nn.Identity()), nn.SiLU()),
    "in a forward": lambda: Calls(ConvNorm(), nn.Hardswish()),
    "a function": lambda: Calls(ConvNorm(), F.relu),
    "in place": lambda: Calls(ConvNorm(), nn.ReLU(inplace=True)),
    "first in the next block": lambda: nn.Sequential(ConvNorm(), ActsFirst(nn.ReLU())),
    "first in the next block, in place": lambda: nn.Sequential(ConvNorm(), ActsFirst(nn.ReLU(inplace=True))),
    "first in the block called next": lambda: Calls(ConvNorm(), ActsFirst(nn.ReLU())),
    "first in the block called next, in place": lambda: Calls(ConvNorm(), ActsFirst(nn.ReLU(inplace=True))),
    "a Sigmoid behind it": lambda: Calls(ConvNorm(), nn.Sigmoid()),
    "a Sigmoid first in the next block": lambda: nn.Sequential(ConvNorm(), ActsFirst(nn.Sigmoid())),
    "between two of DARTS": lambda: Calls(Darts(), Darts()),
}


@pytest.mark.parametrize("kind", ENDS)
def test_behind_a_block(kind: str) -> None:
    stock = ENDS[kind]().train()
    model = opswap.swap(copy.deepcopy(stock))
    assert "batch_norm_act" in {s.rule for s in opswap.report(model).swapped}
    assert_model_as_near(model, stock, lambda: (torch.randn(3, 6, 5, 4),))
    x, seen = torch.randn(3, 6, 5, 4), []
    for module in (next(m for m in model.modules() if isinstance(m, (ConvNorm, Darts))),):
        module.register_forward_hook(lambda m, args, output: seen.append(output))
    model(x)
    assert len(seen) == 1  # the block is called again


@pytest.mark.parametrize(
    "make",
    [
        lambda: Calls(ConvNorm(), nn.ReLU(), used_twice=True),
        lambda: nn.Sequential(ConvNorm(), ActsFirst(nn.ReLU(), used_twice=True)),
        lambda: Calls(ConvNorm(), ActsFirst(nn.ReLU()), used_twice=True),
        lambda: Calls(ConvNorm(), ActsFirst(nn.ReLU(), used_twice=True)),
    ],
    ids=[
        "in a forward",
        "in the next block",
        "before the block called next",
        "in the block called next",
    ],
)
def test_behind_a_block_used_elsewhere(make: Callable[[], nn.Module]) -> None:
    model = opswap.swap(make().train())
    assert "batch_norm_act" not in {s.rule for s in opswap.report(model).swapped}


@pytest.mark.parametrize("first", ["block", "act"])
def test_a_hook_of_a_block_called_in_turn(first: str) -> None:
    """Of either block: it sees what it sees in stock."""
    stock = Calls(ConvNorm(), ActsFirst(nn.ReLU())).train()
    model, x = opswap.swap(copy.deepcopy(stock)), torch.randn(3, 6, 5, 4)
    seen: list[tuple[Tensor, Tensor]] = []
    for m in (stock, model):
        getattr(m, first).register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
        m(x)
    torch.testing.assert_close(seen[1], seen[0])
