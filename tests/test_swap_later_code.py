# SPDX-License-Identifier: MIT
"""Code that comes to modules below a rewritten forward after the swap, and writes to what that forward reads."""

from __future__ import annotations

import copy
import pickle
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from later import Keeper, Own, Parent, compiled, count_looks, patch, runs, writer
from opswap.swap.runtime import guards
from swapping import images

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("error")]


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


def same(stock: nn.Module, model: nn.Module, calls: int = 3) -> None:
    x = images()
    for _ in range(calls):
        torch.testing.assert_close(model(x), stock(x))


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


@pytest.mark.parametrize("name", LATER)
def test_in_a_compiled_model(name: str) -> None:
    """What is compiled before the code comes is compiled again."""
    stock = Parent()
    model = opswap.swap(copy.deepcopy(stock))
    call, x = compiled(model), images()
    if name != "forward below":  # one that comes before the model is compiled
        call(x)
    for m in (stock, model):
        LATER[name](m)
    for _ in range(3):
        torch.testing.assert_close(call(x), stock(x))


def test_a_tree_that_holds_itself() -> None:
    """torch lists the modules of such a tree once."""
    stock = Parent()
    stock.child[1].add_module("back", stock.child[1][0])
    model = opswap.swap(copy.deepcopy(stock))
    same(stock, model)
    model.child[1]._modules["own"] = nn.Identity()
    model.child[1].own._modules["cycle"] = model.child[1].own
    assert model.child[1].own(images()) is not None and model(images()) is not None


def test_a_compiler_that_takes_no_module_as_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, a model then runs its own code; the extension's is back outside of the compiler."""

    def unknown(_: nn.Module) -> str:
        raise AssertionError("asked while the code is compiled")

    stock = Parent()
    model, x = opswap.swap(copy.deepcopy(stock), exact=True), images()
    assert runs(model, x)
    monkeypatch.setattr(guards, "graph_refuses_modules", torch.compiler.is_compiling)
    assert runs(model, x)
    monkeypatch.setattr(guards, "later_conflict", unknown)
    assert torch.equal(compiled(model)(x), stock(x))
