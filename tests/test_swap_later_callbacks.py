# SPDX-License-Identifier: MIT
"""What code below a rewritten forward calls and no module is: functions and objects that come after the swap."""

from __future__ import annotations

import copy
import enum
import gc
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import later_calls
import opswap
from later import Parent, compiled, count_looks, patch, runs, writer
from later_calls import HELPERS, REACHED, Caller, Calls, Hub, Plugin, hub_with
from swapping import images

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("error")]


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("name", REACHED)
def test_what_code_below_calls(name: str, called: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that it finds when it runs, which are not modules."""
    stock = Caller()
    model = opswap.swap(copy.deepcopy(stock))
    for c in (stock.child[1], model.child[1]):
        c.__init__()
        if name == "method of a class":
            c.hub.plugins.append(Plugin())
    assert runs(model, "Caller")
    held: list[Any] = []
    outputs, x = [], images()
    for m in (stock, model):
        with monkeypatch.context() as patched:
            held[:] = [m]
            REACHED[name](m.child[1], lambda x: writer(held[0])(x), patched)
            if m is model and not called:
                assert not runs(model, "Caller")
                model.groups = 2
            outputs.append([m(x) for _ in range(3)])
            Calls.shared.clear()
    torch.testing.assert_close(*outputs)


# What torch 2.13 does not compile again in stock models either.
MISSED = {"nested list", "class method of an object", "attribute of the class of an object", "key of a dict"}
MISSED |= {"class method of a user's kind", "static method of a user's kind"}


@pytest.mark.parametrize("name", sorted(REACHED.keys() - MISSED))
def test_what_code_below_calls_in_a_compiled_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch.compile itself reads it of what a cached property has kept.
    warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor")
    stock = Caller()
    model = opswap.swap(copy.deepcopy(stock))
    monkeypatch.setitem(sys.modules, HELPERS.__name__, HELPERS)
    held: list[Any] = []
    outputs, x = [], images()
    for m, call in ((stock, stock), (model, compiled(model))):
        m.child[1].__init__()
        m.child[1].hub.plugins.append(Plugin())
        call(x)
        held[:] = [m]
        with monkeypatch.context() as patched:
            REACHED[name](m.child[1], lambda x: writer(held[0])(x), patched)
            outputs.append([call(x) for _ in range(3)])
            Calls.shared.clear()
    torch.testing.assert_close(*outputs)


def test_what_a_patched_layer_calls_back() -> None:
    callbacks: list[Callable[[Tensor], Tensor]] = []
    stock = Parent()
    model = opswap.swap(copy.deepcopy(stock))

    def call(x: Tensor) -> Tensor:
        for callback in callbacks:
            callback(x)
        return x

    for m in (stock, model):
        patch(m.child[0], "forward", call)
    assert runs(model)
    outputs, x = [], images()
    for m in (stock, model):
        callbacks[:] = [writer(m)]
        outputs.append([m(x) for _ in range(3)])
    torch.testing.assert_close(*outputs)
    assert not runs(model)
    callbacks.clear()
    model.groups = 2
    assert runs(model)


def test_what_a_hook_calls_back() -> None:
    """Also in a copy, whose hooks are those of the original."""
    callbacks: list[Callable[[Tensor], Tensor]] = []
    model = opswap.swap(Parent())

    def hook(module: nn.Module, args: Any, y: Tensor) -> None:
        for callback in callbacks:
            callback(y)

    model.child[0].register_forward_hook(hook)
    assert runs(model)
    callbacks.append(writer(model))
    assert not runs(model)
    model.groups = 2
    assert not runs(copy.deepcopy(model))


def test_lists_that_grow_are_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors and numbers that code below collects, and more of them than are compared."""
    model = opswap.swap(Caller())
    kept, collected = model.child[1].hub, []
    kept.plugins = [Plugin(), collected]
    model.child[1].listed.append(lambda x: [collected.append((x, 1.0)) for _ in range(40)] and x)
    model.child[1].hub.plugins.remove(collected)
    looks = count_looks(monkeypatch)
    assert runs(model, "Caller") and looks
    looks.clear()
    for _ in range(8):
        assert runs(model, "Caller")
    assert len(collected) > 300 and not looks


class Tracker:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def hook(self, module: nn.Module, args: Any, y: Tensor) -> None:
        for call in self.calls:
            call(y)

    __call__ = hook


class Wrapper:
    def __init__(self, forward: Any) -> None:
        self.forward, self.calls = forward, []

    def __call__(self, x: Tensor) -> Tensor:
        for call in self.calls:
            call(x)
        return self.forward(x)


def calling(layer: Any) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        for c in layer.calls:
            c(x)
        return x

    return call


@pytest.mark.parametrize("kind", ["method", "object", "forward", "list on a layer"])
def test_where_code_below_begins(kind: str) -> None:
    """Hooks and forwards that are methods or objects, and a forward that reads what a layer of torch holds."""
    stock = Parent()
    model = opswap.swap(copy.deepcopy(stock))
    outputs, x = [], images()
    for m in (stock, model):
        tracker: Any = Tracker()
        layer = m.child[0]
        if kind == "forward":
            tracker = layer.forward = Wrapper(layer.forward)
        elif kind == "list on a layer":
            tracker = layer
            layer.calls = []
            patch(layer, "forward", calling(layer))
        else:
            layer.register_forward_hook(tracker.hook if kind == "method" else tracker)
        m(x)
        assert m is stock or runs(model)
        tracker.calls.append(writer(m))
        outputs.append([m(x) for _ in range(3)])
    torch.testing.assert_close(*outputs)
    assert not runs(model)


def test_one_object_in_the_place_of_another() -> None:
    """Both are there all the time."""
    stock = Caller()
    model = opswap.swap(copy.deepcopy(stock))
    assert runs(model, "Caller")
    outputs, hubs, x = [], [model.child[1].hub], images()
    for m in (stock, model):
        hubs.append(hub_with(writer(m)))
        m.child[1].hub = hubs[-1]
        outputs.append([m(x) for _ in range(3)])
    torch.testing.assert_close(*outputs)
    assert not runs(model, "Caller")


class Asked:
    """Counts who asks for its attributes, as a lazy object would."""

    asked = 0

    def __getattribute__(self, name: str) -> Any:
        type(self).asked += 1
        return object.__getattribute__(self, name)

    def run(self, x: Tensor) -> Tensor:
        return x


def test_nobody_asks_a_users_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a proxy whose object is gone."""
    model = opswap.swap(Caller())
    plugin, gone = Asked(), Plugin()
    model.child[1].hub.plugins.append(plugin)
    model.child[1].hub.proxy = weakref.proxy(gone)
    model.child[1].hub.parent = weakref.proxy(model)
    assert runs(model, "Caller")
    monkeypatch.setattr(Asked, "asked", 0)
    del gone
    for _ in range(2):
        assert runs(model, "Caller")
    assert object.__getattribute__(plugin, "asked") == 2  # for `run`, and for nothing else


@dataclass
class Info:
    value: Any


class Keeps(nn.Module):
    """Makes objects of all kinds in each call, and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.all: list[Any] = []
        self.hub = Hub()
        self.info: Any = None
        self.array, self.when, self.numbers = np.zeros(2), datetime.now(), iter(())
        self.drawn, self.space = torch.Generator(), types.SimpleNamespace()
        self.state = types.SimpleNamespace()
        self.color = Color.RED

    def forward(self, x: Tensor) -> Tensor:
        self.found = [x + 1]
        self.info = None
        self.info = Info(x + 2)
        self.all.append(Info(x.shape))
        self.hub = Hub()
        self.hub.plugins = [x + 3, Info(x + 4)]
        self.hub.more = x + 5
        self.array, self.when, self.numbers = self.array + 1, datetime.now(), iter(self.found)
        self.drawn, self.space = torch.Generator(), types.SimpleNamespace(x=1)
        self.color = Color.RED if self.color is Color.BLUE else Color.BLUE
        return x + self.info.value.sum() * 0

    def tensors(self) -> list[Tensor]:
        plugins = self.hub.plugins
        return [*self.found, self.info.value, plugins[0], plugins[1].value, self.hub.more]


class Color(enum.Enum):
    RED = 0
    BLUE = 1


def test_objects_of_each_call_are_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opswap.swap(Caller())
    model.child.append(Keeps())
    assert runs(model, "Caller") and runs(model, "Caller")
    looks = count_looks(monkeypatch)
    for _ in range(4):
        assert runs(model, "Caller")
    assert not looks


def test_variables_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a training loop beside the model's class, in a script."""
    model = opswap.swap(Caller())
    assert runs(model, "Caller") and runs(model, "Caller")
    looks = count_looks(monkeypatch)
    for name in ("out", "loss"):
        monkeypatch.setitem(vars(later_calls), name, 1)
        assert runs(model, "Caller")
    assert not looks


def test_nothing_is_kept_alive() -> None:
    """What objects of the last call hold, what the hook of one call has seen, and the model."""
    model = opswap.swap(Caller())
    gc.collect()  # what the swap has made
    model.child.append(Keeps())
    seen: list[Tensor] = []
    handle = model.child[0].register_forward_hook(lambda module, args, y: seen.append(y * 2))
    x = images()
    model(x)
    kept = model.child[2]
    tensors = [weakref.ref(t) for t in (*seen, *kept.tensors())]
    handle.remove()
    seen.clear()
    del handle
    kept.found = kept.numbers = kept.info = kept.hub = None
    assert not any(t() is not None for t in tensors)
    model(x)
    whole = weakref.ref(model)
    del model, kept
    assert whole() is None


class Meta(type):
    """Its classes have no hash."""

    def __eq__(cls, other: object) -> bool:
        return cls is other


class Closed(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Registry:
    def __init__(self, modules: Any) -> None:
        self._modules = modules

    def run(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("modules", [None, 3, [], ["a"], {}], ids=repr)
def test_an_object_that_is_no_module(modules: Any, called: bool) -> None:
    model = opswap.swap(Caller())
    assert not called or runs(model, "Caller")
    model.child[1].hub.plugins.append(Registry(modules))
    for _ in range(2):
        assert runs(model, "Caller")


@pytest.mark.parametrize("meta", [Meta, Closed])
def test_unusual_classes(meta: type) -> None:
    """What is not known costs a search; nothing is raised."""
    stock = Caller()
    model = opswap.swap(copy.deepcopy(stock))
    x = images()
    for m in (stock, model):
        m.child[1].hub.plugins.append(meta("Odd", (), {"run": lambda self, x: x})())
    for _ in range(2):
        torch.testing.assert_close(model(x), stock(x))


def test_objects_that_hold_each_other() -> None:
    stock = Caller()
    model = opswap.swap(copy.deepcopy(stock))
    outputs, x = [], images()
    for m in (stock, model):
        plugin = Plugin()
        plugin.hub, plugin.own = m.child[1].hub, plugin
        m.child[1].hub.plugins.append(plugin)
        m(x)
        plugin.hub.then = writer(m)
        m.groups = 2
        outputs.append([m(x) for _ in range(3)])
    torch.testing.assert_close(*outputs)


def test_a_module_whose_attributes_are_cleared() -> None:
    model = opswap.swap(Caller())
    layer = nn.Linear(2, 2)
    model.child[1].hub.layer = layer
    assert runs(model, "Caller")
    layer.__dict__.clear()
    for _ in range(2):
        model(images())


def test_an_older_pickle() -> None:
    model = opswap.swap(Caller())
    state = vars(model._opswap_record.later)
    for name in ("_of_code", "_of_hooks"):
        state.pop(name, None)
    assert runs(model, "Caller")


def test_what_is_not_seen_before_the_call() -> None:
    """One value of many: a warning at the end of the call."""
    model = opswap.swap(Caller())
    model.child[1].listed = [lambda x: x] * 300
    assert runs(model, "Caller")
    model.child[1].listed[150] = writer(model)
    with pytest.warns(UserWarning, match="self.groups changed from 2 to 4"):
        model(images())
    assert not runs(model, "Caller")
