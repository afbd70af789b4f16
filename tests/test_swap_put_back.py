# SPDX-License-Identifier: MIT
"""A forward changes what a module that it calls reads, and puts it back before it ends: the rewritten one would not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import opswap
from swapping import images

CONFIG = SimpleNamespace(scale=1.0, depth=0)
STACK: list[int] = []
NUMBER = 1.0


def shuffle(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


class Reader(nn.Module):
    """Its result depends on much that others may write to."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.label, self.box = 1.0, None, {"scale": 1.0}
        self.factors = [1.0]

    def forward(self, x: Tensor) -> Tensor:
        factor = self.scale * CONFIG.scale * (1 + len(STACK)) * NUMBER * self.box["scale"] * sum(self.factors)
        x = x * factor
        return x if self.label is None else x * self.label


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Dropout(0.5)
        self.pool, self.read, self.depth = nn.MaxPool2d(2), Reader(), 0


def momentum(self: Block, x: Tensor) -> Tensor:  # as of AdvProp: this pass does not move the statistics
    before = self.norm.momentum
    self.norm.momentum = 0.0
    x = self.norm(self.conv(x))
    self.norm.momentum = before
    return shuffle(x)


def activated(self: Block, x: Tensor) -> Tensor:
    before = self.norm.momentum
    self.norm.momentum = 0.0
    x = self.norm(self.conv(x)).relu()
    self.norm.momentum = before
    return shuffle(x)


def tracked(self: Block, x: Tensor) -> Tensor:
    self.norm.track_running_stats = False
    x = self.norm(self.conv(x))
    self.norm.track_running_stats = True
    return shuffle(x)


def without_dropout(self: Block, x: Tensor) -> Tensor:
    p, self.drop.p = self.drop.p, 0.0
    try:
        x = self.drop(self.conv(x))
    finally:
        self.drop.p = p
    return shuffle(x)


def all_dropouts(self: Block, x: Tensor) -> Tensor:
    drops = [m for m in self.modules() if isinstance(m, nn.Dropout)]
    before = [m.p for m in drops]
    for m in drops:
        m.p = 0.0
    x = self.drop(self.conv(x))
    for m, p in zip(drops, before, strict=True):
        m.p = p
    return shuffle(x)


def dilations(self: Block, x: Tensor) -> Tensor:  # as of TridentNet: shared weights
    before = self.conv.dilation, self.conv.padding
    found = []
    for d in (1, 2, 3):
        self.conv.dilation = self.conv.padding = (d, d)
        found.append(self.conv(x))
    self.conv.dilation, self.conv.padding = before
    return shuffle(torch.cat(found, 1))


def stride(self: Block, x: Tensor) -> Tensor:
    self.pool.stride = 1
    x = self.pool(self.conv(x))
    self.pool.stride = 2
    return shuffle(x)


def by_setattr(self: Block, x: Tensor) -> Tensor:
    setattr(self.read, "scale", 3.0)  # noqa: B010
    x = self.read(self.conv(x))
    setattr(self.read, "scale", 1.0)  # noqa: B010
    return shuffle(x)


def by_dict(self: Block, x: Tensor) -> Tensor:
    self.read.__dict__["scale"] = 3.0
    x = self.read(self.conv(x))
    self.read.__dict__["scale"] = 1.0
    return shuffle(x)


def constant(self: Block, x: Tensor) -> Tensor:
    self.read.scale = 3.0
    x = self.read(self.conv(x))
    self.read.scale = 1.0
    return shuffle(x)


def label(self: Block, x: Tensor) -> Tensor:  # as of conditional norms
    for m in self.modules():
        if isinstance(m, Reader):
            m.label = x.mean((1, 2, 3), keepdim=True)
    y = self.read(self.conv(x))
    for m in self.modules():
        if isinstance(m, Reader):
            m.label = None
    return shuffle(y)


def configured(self: Block, x: Tensor) -> Tensor:
    before, CONFIG.scale = CONFIG.scale, 3.0
    x = self.read(self.conv(x))
    CONFIG.scale = before
    return shuffle(x)


def global_variable(self: Block, x: Tensor) -> Tensor:
    global NUMBER
    NUMBER = 3.0
    x = self.read(self.conv(x))
    NUMBER = 1.0
    return shuffle(x)


def stacked(self: Block, x: Tensor) -> Tensor:
    STACK.append(1)
    x = self.read(self.conv(x))
    STACK.pop()
    return shuffle(x)


def item(self: Block, x: Tensor) -> Tensor:
    self.read.box["scale"] = 3.0
    x = self.read(self.conv(x))
    self.read.box["scale"] = 1.0
    return shuffle(x)


def item_by_variable(self: Block, x: Tensor) -> Tensor:
    factors = self.read.factors
    factors[0] = 3.0
    x = self.read(self.conv(x))
    factors[0] = 1.0
    return shuffle(x)


def _scaled(block: Block, scale: float) -> None:
    block.read.scale = scale


def by_function(self: Block, x: Tensor) -> Tensor:
    _scaled(self, 3.0)
    x = self.read(self.conv(x))
    _scaled(self, 1.0)
    return shuffle(x)


def weight(self: Block, x: Tensor) -> Tensor:
    before = self.conv.weight
    self.conv.weight = nn.Parameter(before.detach() * 2)
    x = self.conv(x)
    self.conv.weight = before
    return shuffle(x)


def child(self: Block, x: Tensor) -> Tensor:
    before = self.norm
    self.norm = nn.Identity()
    x = self.norm(self.conv(x))
    self.norm = before
    return shuffle(x)


def mode(self: Block, x: Tensor) -> Tensor:
    before = self.norm.training
    self.norm.eval()
    x = self.norm(self.conv(x))
    self.norm.train(before)
    return shuffle(x)


PUT_BACK = (
    momentum,
    activated,
    tracked,
    without_dropout,
    all_dropouts,
    dilations,
    stride,
    by_setattr,
    by_dict,
    constant,
    label,
    configured,
    global_variable,
    stacked,
    item,
    item_by_variable,
    by_function,
    weight,
    child,
    mode,
)


def depth_alone(self: Block, x: Tensor) -> Tensor:
    x = self.conv(x)
    self.depth += 1
    x = shuffle(x)
    self.depth -= 1
    return x


def lists_of_its_own(self: Block, x: Tensor) -> Tensor:
    found, seen = [], {}
    for i in range(2):
        found.append(self.conv(x))
        seen[i] = found[-1]
    return shuffle(torch.cat([*found, seen[1]], 1))


def made(forward: Callable[[Block, Tensor], Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return type("Net", (Block,), {"forward": forward})()


def two_steps(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    results = []
    for _ in range(2):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        y = model(leaf)
        y.square().mean().backward()
        results += [y.detach(), leaf.grad, *(p.grad for p in model.parameters() if p.grad is not None)]
    return [*results, *model.state_dict().values()]


@pytest.mark.parametrize("inputs", [False, True], ids=["", "example_inputs"])
@pytest.mark.parametrize("exact", [False, True], ids=["", "exact"])
@pytest.mark.parametrize("forward", PUT_BACK, ids=lambda f: f.__name__)
def test_what_is_put_back_is_not_lost(
    forward: Callable[[Block, Tensor], Tensor], exact: bool, inputs: bool
) -> None:
    x = images(3, 4, 8, 8)
    stock = made(forward)
    model = opswap.swap(copy.deepcopy(stock), exact=exact, example_inputs=(x,) if inputs else None)
    for ours, theirs in zip(two_steps(model, x), two_steps(stock, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_report_names_it() -> None:
    report = opswap.report(opswap.swap(made(momentum)))
    reasons = [k.reason for k in report.kept if not k.path]
    assert any("forward writes to the module's attribute 'momentum' before it calls" in r for r in reasons)


@pytest.mark.parametrize("forward", [depth_alone, lists_of_its_own], ids=lambda f: f.__name__)
def test_what_no_module_can_see_is_captured(forward: Callable[[Block, Tensor], Tensor]) -> None:
    x = images(3, 4, 8, 8)
    stock = made(forward)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert any(not s.path for s in opswap.report(model).swapped), opswap.report(model)
    assert torch.equal(model(x), stock(x))
