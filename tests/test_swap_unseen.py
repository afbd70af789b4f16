# SPDX-License-Identifier: MIT
"""Modules that a forward calls, and their hooks, write to what the forward reads, which a trace does not see."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from swapping import images

STATE = SimpleNamespace(groups=2)
COUNT = 0
SEEN: list[int] = []


def shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.size()
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Meter:
    """An object that a child and its parent share."""

    def __init__(self) -> None:
        self.groups = 2
        self.values: list[int] = []

    def add(self) -> None:
        self.values.append(len(self.values))

    def change(self) -> None:
        self.groups = 6 - self.groups


class Child(nn.Module):
    """Returns its input, and calls `effect` with itself."""

    def __init__(self, effect: Callable[[Any], None]) -> None:
        super().__init__()
        self.effect, self.groups, self.calls = effect, 2, 0
        self.log: list[int] = []
        self.meter = Meter()
        self.register_buffer("offset", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.effect(self)
        return x + 0


class Parent(nn.Module):
    def __init__(self, effect: Callable[[Any], None], value: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.child, self.value = Child(effect), value
        self.meter, self.act = self.child.meter, nn.ReLU()

    def forward(self, x: Tensor) -> Any:
        y = self.child(x)
        return shuffle(self.act(y), 2), self.value(self, y)


def toggle(child: Child) -> None:
    child.groups = 6 - child.groups


def set_text(child: Child) -> None:
    setattr(child, "groups", 6 - child.groups)  # noqa: B010


def set_any(child: Child) -> None:
    for name in ("groups",):
        setattr(child, name, 6 - child.groups)


def in_namespace(child: Child) -> None:
    vars(child)["groups"] = 6 - child.groups


def in_module_of_state(child: Child) -> None:
    STATE.groups = 6 - STATE.groups


def in_global(child: Child) -> None:
    global COUNT
    COUNT += 1


def rebind(child: Child) -> None:
    child.offset = child.offset + 1


def register(child: Child) -> None:
    child.register_buffer("offset", child.offset + 1)


def count_alone(child: Child) -> None:
    child.calls += 1


CHANGES: dict[str, tuple[Callable[[Any], None], Callable[[Any, Tensor], Any]]] = {
    "attribute": (toggle, lambda m, y: shuffle(y, m.child.groups)),
    "getattr": (toggle, lambda m, y: shuffle(y, getattr(m.child, "groups"))),  # noqa: B009
    "setattr": (set_text, lambda m, y: shuffle(y, m.child.groups)),
    "setattr of any name": (set_any, lambda m, y: shuffle(y, m.child.groups)),
    "namespace": (in_namespace, lambda m, y: shuffle(y, m.child.groups)),
    "object": (lambda c: c.meter.change(), lambda m, y: shuffle(y, m.meter.groups)),
    "list of an object": (lambda c: c.meter.add(), lambda m, y: y * len(m.meter.values)),
    "list": (lambda c: c.log.append(1), lambda m, y: y * len(m.child.log)),
    "global object": (in_module_of_state, lambda m, y: shuffle(y, STATE.groups)),
    "global": (in_global, lambda m, y: y * COUNT),
    "global list": (lambda c: SEEN.append(1), lambda m, y: y * len(SEEN)),
    "buffer": (rebind, lambda m, y: y + m.child.offset),
    "registered buffer": (register, lambda m, y: y + m.child.offset),
}


def same_on_every_call(stock: nn.Module, model: nn.Module, reset: Callable[[], None] = lambda: None) -> None:
    x = images()
    found = []
    for m in (stock, model):
        reset()
        found.append([m(x) for _ in range(3)])
    torch.testing.assert_close(*found)


def reset() -> None:
    global COUNT
    COUNT, STATE.groups = 0, 2
    SEEN.clear()


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_child_writes_is_read_again(name: str) -> None:
    effect, value = CHANGES[name]
    reset()
    stock = Parent(effect, value)
    model = opswap.swap(copy.deepcopy(stock))
    same_on_every_call(stock, model, reset)


def test_a_variable_of_a_closure() -> None:
    def make() -> nn.Module:
        groups = 2

        def effect(child: Child) -> None:
            nonlocal groups
            groups = 6 - groups

        return Parent(effect, lambda m, y: shuffle(y, groups))

    same_on_every_call(make(), opswap.swap(make()))


def test_a_parameter_is_read_where_the_forward_reads_it() -> None:
    """Before and after a child puts another tensor in its place."""

    class Reading(Parent):
        def forward(self, x: Tensor) -> Tensor:
            before = self.child.offset
            return shuffle(self.child(x), 2) * (1 + before) + self.child.offset

    stock = Reading(rebind, lambda m, y: y)
    same_on_every_call(stock, opswap.swap(copy.deepcopy(stock)))


def test_a_child_changes_the_sequential_that_runs() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(12, 12, 1), Child(lambda c: None), nn.BatchNorm2d(12), nn.ReLU())
        link = weakref.ref(model)
        model[1].effect = lambda c: link().__setitem__(3, nn.Tanh()) if c.training else None
        return model

    torch.manual_seed(0)
    stock = make()
    torch.manual_seed(0)
    same_on_every_call(stock, opswap.swap(make()))


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.seen, self.last = nn.Conv2d(12, 12, 3), {}, None

    def forward(self, x: Tensor) -> Any:
        y = shuffle(self.conv(x), 2)
        return (y, self.last, *self.seen.values())


def collects(model: Any) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        model.seen["conv"] = output

    return hook


def keeps(model: Any) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        model.last = output

    return hook


def keeps_before(model: Any) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any) -> None:
        (model.last,) = args

    return hook


HOOKS = {
    "collects": (collects, "register_forward_hook"),
    "keeps": (keeps, "register_forward_hook"),
    "keeps before": (keeps_before, "register_forward_pre_hook"),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("when", ["before", "after", "after a call"])
def test_hooks_of_a_child(name: str, when: str) -> None:
    make, kind = HOOKS[name]
    stock = Hooked()
    model = copy.deepcopy(stock)
    getattr(stock.conv, kind)(make(stock))
    if when == "before":
        getattr(model.conv, kind)(make(model))
    opswap.swap(model)
    x = images()
    if when == "after a call":
        model(x)
    if when != "before":
        getattr(model.conv, kind)(make(model))
        assert "a hook of a module that forward calls may write to" in str(opswap.explain(model, x))
        model.last = None
        model.seen.clear()
    for _ in range(2):
        torch.testing.assert_close(model(x), stock(x))


def test_hooks_that_write_elsewhere() -> None:
    """They collect what the forward does not read: it stays rewritten, and so do its copies."""
    model = opswap.swap(Hooked())
    features: dict[str, Tensor] = {}

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        features["conv"] = output

    handle = model.conv.register_forward_hook(hook)
    for m in (model, copy.deepcopy(model)):
        opswap.reset_stats()
        m(images())
        assert "Hooked" not in opswap.stats()["original"] and features
    handle.remove()
    assert opswap.report(pickle.loads(pickle.dumps(model))).swapped


def test_children_that_write_what_nobody_reads() -> None:
    model = opswap.swap(Parent(count_alone, lambda m, y: shuffle(y, m.child.groups)))
    assert [s.rule for s in opswap.report(model).swapped if not s.path].count("channel_shuffle") == 2
