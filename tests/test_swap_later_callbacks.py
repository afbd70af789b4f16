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
from collections import OrderedDict, UserList, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import opswap
from later import Parent, compiled, count_looks, patch, runs, writer
from swapping import images

pytestmark = pytest.mark.once


class Hub:
    """An object of a user that no module is."""

    then: Any = None

    def __init__(self) -> None:
        self.plugins: list[Any] = []
        self.losses: list[float] = []
        self.slot = Slotted()

    @property
    def always(self) -> Any:
        return None

    @classmethod
    def finish(cls, x: Tensor) -> Tensor:
        return x


class Slotted:
    __slots__ = ("then",)

    then: Any


def hub_with(write: Callable[[Tensor], Tensor]) -> Hub:
    hub = Hub()
    hub.plugins.append(WritingPlugin(write))
    return hub


class Plugin:
    def run(self, x: Tensor) -> Tensor:
        return x


class WritingPlugin(Plugin):
    def __init__(self, write: Callable[[Tensor], Tensor]) -> None:
        self.write = write

    def run(self, x: Tensor) -> Tensor:
        return self.write(x)


HELPERS = types.ModuleType("helpers_of_a_user")
exec("then = None\ndef through(x):\n    return x if then is None else then(x)", HELPERS.__dict__)


THEN: Any = None
BEHIND: dict[str, Any] = {}
PROXIED = MappingProxyType(BEHIND)


def through_helpers(x: Tensor) -> Tensor:
    return HELPERS.through(x)


class Calling(list):
    then: Any = None


HUB = Hub()
HELD: list[Any] = []


def plain(x: Tensor) -> Tensor:
    return x


def writing(x: Tensor) -> Tensor:
    return HELD[0](x)


class Calls(nn.Module):
    """Finds what it calls in containers, variables and objects."""

    shared: list[Any] = []  # noqa: RUF012, as a user may write it

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[Any] = []
        self.partial = partial(lambda calls, x: [c(x) for c in calls] and x, [])
        self.queue: deque[Any] = deque(maxlen=4)
        self.user = UserList()
        self.ordered: OrderedDict[str, Any] = OrderedDict()
        self.keys: dict[Any, int] = {}
        self.behind = weakref.ref(HUB)
        self.subclass = Calling()
        self.late: Any = None
        self.named: dict[str, Any] = {"first": lambda x: x}
        self.nested: list[Any] = [(1, [])]
        self.unique: set[Any] = set()
        self.hub = Hub()
        then = None

        def through(x: Tensor) -> Tensor:
            return x if then is None else then(x)

        def change(value: Any) -> None:
            nonlocal then
            then = value

        self.through, self.change = through, change

    def forward(self, x: Tensor) -> Tensor:
        found = [*self.listed, *self.queue, *self.named.values(), *self.nested[0][1], *self.unique]
        found += [*PROXIED.values(), *self.user]
        found += [
            *self.ordered.values(),
            *self.keys,
            *self.behind().plugins,
            *self.shared,
            *(self.late or ()),
        ]
        found += getattr(self, "later", ())
        if self.subclass.then is not None:
            found.append(self.subclass.then)
        self.partial(x)
        for _, nested in self.nested[1:]:
            found += nested
        if self.hub.then is not None:
            found.append(self.hub.then)
        found += [self.hub.slot.then] if hasattr(self.hub.slot, "then") else []
        if self.hub.always is not None:
            found.append(self.hub.always)
        if THEN is not None:
            found.append(THEN)
        for call in found:
            x = call(x)
        for plugin in self.hub.plugins:
            x = plugin.run(x)
        return through_helpers(plain(self.through(self.hub.finish(x))))


class Caller(Parent):
    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Sequential(nn.Conv2d(12, 12, 3), Calls())


REACHED: dict[str, Callable[[Any, Any, pytest.MonkeyPatch], Any]] = {
    "list": lambda c, write, _: c.listed.append(write),
    "another list": lambda c, write, _: setattr(c, "listed", [write]),
    "deque": lambda c, write, _: c.queue.append(write),
    "dict": lambda c, write, _: c.named.update(then=write),
    "value of a dict": lambda c, write, _: c.named.update(first=write),
    "set": lambda c, write, _: c.unique.add(write),
    "list in a partial": lambda c, write, _: c.partial.args[0].append(write),
    "OrderedDict": lambda c, write, _: c.ordered.update(then=write),
    "key of a dict": lambda c, write, _: c.keys.update({write: 1}),
    "behind a weak reference": lambda c, write, patch: patch.setattr(HUB, "plugins", [write]),
    "attribute of a list": lambda c, write, _: setattr(c.subclass, "then", write),
    "list in the place of None": lambda c, write, _: setattr(c, "late", [write]),
    "list that was not there": lambda c, write, _: setattr(c, "later", [write]),
    "list of the class": lambda c, write, patch: patch.setattr(Calls, "shared", [write]),
    "appended to the list of the class": lambda c, write, _: Calls.shared.append(write),
    "behind many numbers": lambda c, write, _: (
        c.hub.losses.extend(range(300)),
        setattr(c.hub, "then", write),
    ),
    "code of a function": lambda c, write, patch: (
        HELD.insert(0, write),
        patch.setattr(plain, "__code__", writing.__code__),
    ),
    "dict behind a proxy": lambda c, write, patch: patch.setitem(BEHIND, "then", write),
    "UserList": lambda c, write, _: c.user.append(write),
    "nested list": lambda c, write, _: c.nested[0][1].append(write),
    "nested tuple": lambda c, write, _: c.nested.append((2, [write])),
    "attribute of an object": lambda c, write, _: setattr(c.hub, "then", write),
    "another object": lambda c, write, _: setattr(c, "hub", hub_with(write)),
    "slot of an object": lambda c, write, _: setattr(c.hub.slot, "then", write),
    "attribute of the class of an object": lambda c, write, patch: patch.setattr(
        Hub, "then", staticmethod(write)
    ),
    "property of the class of an object": lambda c, write, patch: patch.setattr(
        Hub, "always", property(lambda self: write)
    ),
    "class method of an object": lambda c, write, patch: patch.setattr(
        Hub, "finish", classmethod(lambda cls, x: write(x))
    ),
    "object in a list of an object": lambda c, write, _: c.hub.plugins.append(WritingPlugin(write)),
    "method of a class": lambda c, write, patch: (
        c.hub.plugins.append(Plugin()),
        patch.setattr(Plugin, "run", lambda self, x: write(x)),
    ),
    "variable of a closure": lambda c, write, _: c.change(write),
    "global variable": lambda c, write, patch: patch.setitem(globals(), "THEN", write),
    "function of a Python module": lambda c, write, patch: patch.setattr(HELPERS, "through", write),
    "variable of a Python module": lambda c, write, patch: patch.setattr(HELPERS, "then", write),
    "function": lambda c, write, patch: patch.setitem(globals(), "through_helpers", write),
}


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


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
MISSED = {"nested list", "class method of an object"}


@pytest.mark.parametrize("name", sorted(REACHED.keys() - MISSED))
def test_what_code_below_calls_in_a_compiled_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
