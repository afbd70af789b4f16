# SPDX-License-Identifier: MIT
"""Code that comes to modules below a rewritten forward after the swap, and writes to what that forward reads."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap.capture.later_code import LaterCode
from swapping import images

pytestmark = pytest.mark.once


def shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.size()
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Keeper:
    def __call__(self, x: Tensor) -> Tensor:
        return x


class Own(nn.Module):
    """A user's module below the called child."""

    callback: Any = None
    calls = 1000

    def __init__(self) -> None:
        super().__init__()
        self.function: Any = None
        self.keeper = Keeper()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        type(self).calls += 1
        for call in (self.callback, self.function, self.keeper):
            x = x if call is None else call(x)
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        return x if self.shift is None else x + 0

    @property
    def shift(self) -> Any:
        return None


class Child(nn.Sequential):
    pass


class Parent(nn.Module):
    """Reads `groups` after the child has run."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = 2
        self.first = nn.Conv2d(12, 12, 1)
        below = Child(nn.ReLU(), Own(), nn.Sequential())
        self.child = nn.Sequential(nn.Conv2d(12, 12, 3), below, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        y = self.child(self.first(x))
        return shuffle(y, 2) * self.groups


def writer(model: Parent) -> Callable[[Tensor], Tensor]:
    def write(x: Tensor) -> Tensor:
        model.groups = 6 - model.groups
        return x

    return write


class Writes(nn.Module):
    def __init__(self, model: Parent) -> None:
        super().__init__()
        self.holds = [model]

    def forward(self, x: Tensor) -> Tensor:
        self.holds[0].groups = 6 - self.holds[0].groups
        return x


class WritingConv(nn.Conv2d):
    holds: Any

    def forward(self, x: Tensor) -> Tensor:
        self.holds[0].groups = 6 - self.holds[0].groups
        return super().forward(x)


class WritingOwn(Own):
    holds: Any

    def finish(self, x: Tensor) -> Tensor:
        self.holds[0].groups = 6 - self.holds[0].groups
        return x


def patch(module: nn.Module, name: str, write: Callable[[Tensor], Tensor]) -> None:
    old = getattr(module, name)
    setattr(module, name, lambda x, *rest: old(write(x), *rest))


def of_class(module: Any, cls: type, model: Parent) -> None:
    module.__class__ = cls
    object.__setattr__(module, "holds", [model])


def stored(module: nn.Module, model: Parent) -> None:
    """The module that was there, with another object in the place of one that was called before."""

    class Other(Keeper):
        def __call__(self, x: Tensor) -> Tensor:
            return writer(model)(x)

    module.keeper = Other()


LATER: dict[str, Callable[[Parent], Any]] = {
    "forward of the child": lambda m: patch(m.child, "forward", writer(m)),
    "forward of a layer": lambda m: patch(m.first, "forward", writer(m)),
    "forward below": lambda m: patch(m.child[0], "forward", writer(m)),
    "forward deep below": lambda m: patch(m.child[1][0], "forward", writer(m)),
    "forward of a user's module": lambda m: patch(m.child[1][1], "forward", writer(m)),
    "_conv_forward": lambda m: patch(m.first, "_conv_forward", writer(m)),
    "_conv_forward below": lambda m: patch(m.child[0], "_conv_forward", writer(m)),
    "method": lambda m: patch(m.child[1][1], "finish", writer(m)),
    "bound method": lambda m: setattr(
        m.child[1][1], "finish", types.MethodType(lambda self, x: writer(m)(x), m.child[1][1])
    ),
    "function": lambda m: setattr(m.child[1][1], "function", writer(m)),
    "object": lambda m: stored(m.child[1][1], m),
    "appended": lambda m: m.child.append(Writes(m)),
    "appended deep below": lambda m: m.child[1].append(Writes(m)),
    "appended to nothing": lambda m: m.child[1][2].append(Writes(m)),
    "inserted": lambda m: m.child[1].insert(0, Writes(m)),
    "replaced": lambda m: m.child.__setitem__(2, Writes(m)),
    "replaced deep below": lambda m: m.child[1].__setitem__(0, Writes(m)),
    "replaced child": lambda m: setattr(m, "child", nn.Sequential(m.child, Writes(m))),
    "class of a layer": lambda m: of_class(m.first, WritingConv, m),
    "class below": lambda m: of_class(m.child[0], WritingConv, m),
    "class of a user's module": lambda m: of_class(m.child[1][1], WritingOwn, m),
    "hook deep below": lambda m: m.child[1][0].register_forward_hook(lambda *_: writer(m)(m) and None),
}


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def same(stock: nn.Module, model: nn.Module, calls: int = 3) -> None:
    x = images()
    for _ in range(calls):
        torch.testing.assert_close(model(x), stock(x))


def runs(model: nn.Module, name: str = "Parent") -> bool:
    """True if the parent's generated code runs."""
    opswap.reset_stats()
    model(images())
    return name not in opswap.stats()["original"]


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[LaterCode]:
    """Gets an entry each time that the modules are looked at anew."""
    looks: list[LaterCode] = []
    look = LaterCode._look

    def counted(self: LaterCode, *args: Any) -> None:
        looks.append(self)
        look(self, *args)

    monkeypatch.setattr(LaterCode, "_look", counted)
    return looks


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("name", LATER)
def test_it_is_seen_before_the_call(name: str, called: bool) -> None:
    stock = Parent()
    model = opswap.swap(copy.deepcopy(stock))
    if called:
        assert runs(model)
    for m in (stock, model):
        LATER[name](m)
    assert not any(o.ran for o in opswap.explain(model, images()).outcomes if not o.path)
    # What a copy wrote to the model is taken back, unless another thread may have written it.
    assert model.groups == 2 or threading.active_count() > 1
    model.groups = 2
    same(stock, model)


@pytest.mark.parametrize("name", LATER)
def test_in_a_copy(name: str) -> None:
    stock = Parent()
    model = copy.deepcopy(opswap.swap(copy.deepcopy(stock)))
    assert runs(model)
    model, whole = copy.deepcopy(model), model
    for m in (stock, model):
        LATER[name](m)
    same(stock, model)
    assert runs(whole)


@pytest.mark.parametrize("name", LATER)
def test_in_a_loaded_model(name: str) -> None:
    stock = Parent()
    model = pickle.loads(pickle.dumps(opswap.swap(copy.deepcopy(stock))))
    for m in (stock, model):
        LATER[name](m)
    same(stock, model)


def test_the_class_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Parent()
    model = opswap.swap(copy.deepcopy(stock))
    held: list[Parent] = [model]

    def finish(self: Own, x: Tensor) -> Tensor:
        return writer(held[0])(x)

    x = images()
    shift = property(lambda self: writer(held[0])(x))
    for name, value in (("finish", finish), ("callback", finish), ("shift", shift)):
        with monkeypatch.context() as patched:
            model.groups = 2
            assert runs(model)
            patched.setattr(Own, name, value)
            outputs = []
            for m in (stock, model):
                held[0], m.groups = m, 2
                outputs.append([m(x) for _ in range(3)])
            torch.testing.assert_close(*outputs)


def test_counters_are_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules are looked at anew when something changes that may run code, not in every call."""
    model = opswap.swap(Parent())
    looks = count_looks(monkeypatch)
    assert runs(model) and looks
    looks.clear()
    assert runs(model) and not looks
    model.child[1][1].function = writer(model)
    assert not runs(model) and looks


def test_what_is_taken_away_again() -> None:
    """The generated code runs before, and after."""
    stock = Parent()
    model = opswap.swap(copy.deepcopy(stock))
    for m in (stock, model):
        patch(m.child[0], "forward", writer(m))
    same(stock, model, 2)
    assert not runs(model)
    model.groups = 2
    del model.child[0].forward
    assert runs(model)


def test_what_writes_elsewhere_costs_nothing() -> None:
    """Other layers, counters and functions: the generated code goes on."""
    stock = Parent()
    model = opswap.swap(copy.deepcopy(stock))
    features: dict[str, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        features["x"] = x
        return x

    for m in (stock, model):
        patch(m.child[0], "forward", keep)
        m.child[1][1].function = keep
        m.child[1][0] = nn.LeakyReLU(0.2)
        m.child[1][1].more = 1
        m.child[1].append(nn.Dropout(0.0))
    same(stock, model)
    assert runs(model) and features


class Hub:
    """An object of a user that no module is."""

    then: Any = None

    def __init__(self) -> None:
        self.plugins: list[Any] = []
        self.slot = Slotted()


class Slotted:
    __slots__ = ("then",)

    then: Any


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


def through_helpers(x: Tensor) -> Tensor:
    return HELPERS.through(x)


class Calls(nn.Module):
    """Finds what it calls in containers, variables and objects."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[Any] = []
        self.queue: deque[Any] = deque(maxlen=4)
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
        for _, nested in self.nested[1:]:
            found += nested
        if self.hub.then is not None:
            found.append(self.hub.then)
        found += [self.hub.slot.then] if hasattr(self.hub.slot, "then") else []
        if THEN is not None:
            found.append(THEN)
        for call in found:
            x = call(x)
        for plugin in self.hub.plugins:
            x = plugin.run(x)
        return through_helpers(self.through(x))


class Caller(Parent):
    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Sequential(nn.Conv2d(12, 12, 3), Calls())


REACHED: dict[str, Callable[[Any, Any, pytest.MonkeyPatch], Any]] = {
    "list": lambda c, write, _: c.listed.append(write),
    "deque": lambda c, write, _: c.queue.append(write),
    "dict": lambda c, write, _: c.named.update(then=write),
    "value of a dict": lambda c, write, _: c.named.update(first=write),
    "set": lambda c, write, _: c.unique.add(write),
    "nested list": lambda c, write, _: c.nested[0][1].append(write),
    "nested tuple": lambda c, write, _: c.nested.append((2, [write])),
    "attribute of an object": lambda c, write, _: setattr(c.hub, "then", write),
    "slot of an object": lambda c, write, _: setattr(c.hub.slot, "then", write),
    "attribute of the class of an object": lambda c, write, patch: patch.setattr(
        Hub, "then", staticmethod(write)
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
    torch.testing.assert_close(*outputs)


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("name", LATER)
def test_in_a_compiled_model(name: str, called: bool) -> None:
    """What is compiled before the code comes is compiled again."""
    stock = Parent()
    model = opswap.swap(copy.deepcopy(stock))
    call, x = compiled(model), images()
    if called:
        call(x)
    for m in (stock, model):
        LATER[name](m)
    for _ in range(3):
        torch.testing.assert_close(call(x), stock(x))


@pytest.mark.parametrize(
    "name", sorted(REACHED.keys() - {"nested list"})
)  # torch 2.13 misses it in stock models
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


def test_what_is_not_seen_before_the_call() -> None:
    """One value of many: a warning at the end of the call."""
    model = opswap.swap(Caller())
    model.child[1].listed = [lambda x: x] * 300
    assert runs(model, "Caller")
    model.child[1].listed[150] = writer(model)
    with pytest.warns(UserWarning, match="self.groups changed from 2 to 4"):
        model(images())
    assert not runs(model, "Caller")


def test_a_tree_that_holds_itself() -> None:
    """torch lists the modules of such a tree once."""
    stock = Parent()
    stock.child[1].add_module("back", stock.child[1][0])
    model = opswap.swap(copy.deepcopy(stock))
    same(stock, model)
    model.child[1]._modules["own"] = nn.Identity()
    model.child[1].own._modules["cycle"] = model.child[1].own
    assert model.child[1].own(images()) is not None and model(images()) is not None
