# SPDX-License-Identifier: MIT
"""Python state that a forward reads and that changes after the swap."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import opswap
from spellings import CAT, Joined, Split, by_size
from swapping import images, same, swapped

pytestmark = pytest.mark.usefixtures("every_rule_applies")


class Configured(nn.Module):
    """Its forward reads Python state from everywhere."""

    default_groups = 2

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.order = list(reversed(range(12)))
        self.options = {"groups": 3}
        self.parts = [[6, 6], 2]
        self.body: Callable[[Tensor], Tensor] = torch.relu

    def mix(self, x: Tensor) -> Tensor:
        return by_size(x, self.default_groups)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(self.conv(x))[:, self.order]
        a, b = by_size(self.body(x), self.options["groups"]).split(self.parts[0], 1)
        return torch.cat((b, a * self.parts[1]), 1)


def _replace_order(m: nn.Module) -> None:
    m.order = list(range(12))


def _reorder(m: nn.Module) -> None:
    m.order.sort()


def _set_option(m: nn.Module) -> None:
    m.options["groups"] = 4


def _set_inner_part(m: nn.Module) -> None:
    m.parts[0][:] = [4, 8]


def _shadow_class_constant(m: nn.Module) -> None:
    m.default_groups = 6


def _replace_function(m: nn.Module) -> None:
    m.body = torch.tanh


def _override_method(m: nn.Module) -> None:
    m.mix = types.MethodType(lambda self, x: x, m)


def _replace_child(m: nn.Module) -> None:
    torch.manual_seed(7)
    m.conv = nn.Conv2d(12, 12, 1)


def _add_hook(m: nn.Module) -> None:
    m.conv.register_forward_hook(lambda _, args, y: y * 2)


def _wrap_forward(m: nn.Module) -> None:
    forward = m.forward
    m.forward = lambda x: forward(x) + 1


CHANGES = [
    _replace_order,
    _reorder,
    _set_option,
    _set_inner_part,
    _shadow_class_constant,
    _replace_function,
    _override_method,
    _replace_child,
    _add_hook,
    _wrap_forward,
]


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a Sequential"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_state_that_changes(change: Callable[[nn.Module], None], nested: bool) -> None:
    stock = Configured()
    if nested:
        stock = nn.Sequential(stock, Split())
    model = swapped(stock)
    assert len(opswap.report(model).swapped) >= 3
    same(model, stock)
    for m in (stock, model):
        change(m[0] if nested else m)
    same(model, stock)


def test_a_class_that_changes() -> None:
    class Local(Configured):
        default_groups = 2

    stock = Local()
    model = swapped(stock)
    same(model, stock)
    Local.default_groups = 3
    same(model, stock)
    Local.default_groups = 2
    Local.forward = lambda self, x: by_size(self.conv(x), 6)
    same(model, stock)


def test_a_partial() -> None:
    """Its keywords are a dict that can be written to; torch.compile makes another object of it on every look."""
    stock = Joined(partial(partial(by_size), groups=3))
    model = swapped(stock)
    assert [s.rule for s in opswap.report(model).swapped] == [CAT]
    torch._dynamo.reset()
    for m in (model, torch.compile(model, backend="eager", fullgraph=True)):
        opswap.reset_stats()
        same(m, stock)
        assert sum(opswap.stats()["kernel"].values()) == 2
    for m in (model, stock):
        m.body.keywords["groups"] = 2
    opswap.reset_stats()
    same(model, stock)
    assert opswap.stats()["original"]


def test_unrelated_attributes_cost_nothing() -> None:
    model = swapped(Configured())
    model.epoch, model.history, model.conv.name = 3, [], "first"
    opswap.reset_stats()
    model(images())
    assert not opswap.stats()["original"]


def test_states_survive_copies() -> None:
    stock = Configured()
    model = copy.deepcopy(swapped(stock))
    opswap.reset_stats()
    same(model, stock)
    assert not opswap.stats()["original"]
    _set_option(model)
    _set_option(stock)
    same(model, stock)


def test_state_under_torch_compile() -> None:
    stock = Configured()
    model = swapped(stock)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    x = images()
    assert torch.equal(compiled(x), stock(x))
    for m in (stock, model):
        m.options["groups"] = 4
    assert torch.equal(compiled(x), stock(x))
