# SPDX-License-Identifier: MIT
"""A class gets another forward after the swap, of any parameters: it gets the arguments of the call as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import opswap


def shuffled(x: Tensor, groups: int = 2) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


def make(parameters: str) -> type[nn.Module]:
    """A class whose forward has these parameters, and shuffles the one called x."""
    scope: dict[str, Any] = {"shuffled": shuffled}
    exec(f"def forward(self, {parameters}):\n    return shuffled(x)", scope)
    return type("Block", (nn.Module,), {"forward": scope["forward"]})


def renamed(self: Any, first: Tensor, second: Any = None) -> Tensor:
    return first + 1 if second is None else first - second


def swapped_order(self: Any, y: Tensor, x: Tensor) -> Tensor:
    return y * 2 - x


def other_default(self: Any, x: Tensor, y: Any = 5) -> Tensor:
    return x * y


def anything(self: Any, *args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def by_keyword(self: Any, *, z: Tensor) -> Tensor:
    return z * 3


X, Y = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3)
CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, Y), {}),
    ((X,), {"y": Y}),
    ((X, None), {}),
    ((X,), {"y": None}),
    ((), {"x": X}),
    ((), {"x": X, "y": Y}),
    ((), {"z": X}),
    ((), {"first": X, "second": Y}),
    ((X, Y, X), {}),
    ((), {}),
    ((X,), {"x": X}),
]
PARAMETERS = [
    "x",
    "x, y=None",
    "x, /",
    "x, *, y=None",
    "x, y=None, *rest",
    "x, **more",
    "y, x",
    "x, y=3, *, z=4",
]


def result(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return module(*args, **kwargs)
    except (TypeError, RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


def assert_same(ours: Any, theirs: Any) -> None:
    ours, theirs = tree_leaves(ours), tree_leaves(theirs)
    assert len(ours) == len(theirs), (ours, theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) if isinstance(b, Tensor) else a == b, (a, b)


@pytest.mark.parametrize("other", [None, renamed, swapped_order, other_default, anything, by_keyword])
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_every_way_to_call(parameters: str, other: Callable[..., Any] | None) -> None:
    cls = make(parameters)
    stock = cls()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert opswap.report(model).swapped
    if other is not None:
        cls.forward = other
    for args, kwargs in CALLS:
        assert_same(result(model, args, kwargs), result(stock, args, kwargs))


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_the_replacement_runs_however_the_arguments_are_given(parameters: str) -> None:
    model = opswap.swap(make(parameters)(), exact=True)
    for args, kwargs in CALLS[:8]:
        opswap.reset_stats()
        expected = result(copy.copy(model), args, kwargs)
        if isinstance(expected, Tensor) and all(v is X for v in (*args, *kwargs.values())):
            assert not opswap.stats()["original"], (args, kwargs)


@pytest.mark.parametrize("name", ["input", "x", "image"])
@pytest.mark.parametrize("kind", [nn.MaxPool2d, nn.Dropout, nn.BatchNorm2d])
def test_a_layer_of_torch(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers get a new forward whole, without a capture."""
    stock = kind({nn.BatchNorm2d: 4, nn.MaxPool2d: 2, nn.Dropout: 0.5}[kind])
    model = opswap.swap(copy.deepcopy(stock))
    assert opswap.report(model).swapped
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {name}, scale=1):\n    return {name} * 7 * scale", scope)
    monkeypatch.setattr(kind, "forward", scope["forward"])
    for args, kwargs in (
        ((X,), {}),
        ((), {name: X}),
        ((X, 3), {}),
        ((X,), {"scale": 2}),
        ((), {"other": X}),
        ((), {}),
    ):
        assert_same(result(model, args, kwargs), result(stock, args, kwargs))


def test_the_reason_is_told() -> None:
    cls = make("x")
    model = opswap.swap(cls(), exact=True)
    cls.forward = renamed
    (outcome,) = opswap.explain(model, X).outcomes
    assert (outcome.result, outcome.reason) == ("original", "Block.forward was replaced")


def test_compiled_and_exported() -> None:
    model = opswap.swap(make("x, y=None")(), exact=True)
    expected = shuffled(X)
    for args, kwargs in (((X,), {}), ((), {"x": X}), ((X, None), {})):
        torch.compiler.reset()
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(*args, **kwargs), expected)
        for strict in (True, False):
            exported = torch.export.export(model, args, kwargs, strict=strict).module()
            assert torch.equal(exported(*args, **kwargs), expected)


class Held(nn.Module):
    """Has special methods that its forwards use."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.layers = nn.ModuleList([nn.Conv2d(12, 12, 1), nn.Conv2d(12, 12, 1)])

    def __len__(self) -> int:
        return 2

    def __bool__(self) -> bool:
        return True

    def __contains__(self, key: int) -> bool:
        return True

    def __getitem__(self, i: int) -> nn.Module:
        return self.layers[i]

    def __iter__(self) -> Any:
        return iter(self.layers)


def _with_groups(self: Any, name: str) -> Any:
    return 3 if name == "groups" else nn.Module.__getattr__(self, name)


SPECIAL: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "__len__": (lambda s, x: shuffled(s.conv(x), len(s)), lambda s: 3),
    "__bool__": (lambda s, x: shuffled(s.conv(x), 2 if s else 3), lambda s: False),
    "__contains__": (lambda s, x: shuffled(s.conv(x), 2 if 1 in s else 3), lambda s, key: False),
    "__getitem__": (lambda s, x: shuffled(s[0](x)), lambda s, i: s.layers[1]),
    "__iter__": (lambda s, x: shuffled(next(iter(s))(x)), lambda s: iter([s.layers[1]])),
    "__getattr__": (lambda s, x: shuffled(s.conv(x), getattr(s, "groups", 2)), _with_groups),
    "children": (lambda s, x: shuffled(next(s.children())(x)), lambda s: iter([s.layers[1]])),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_a_class_with_other_special_methods(name: str) -> None:
    body, other = SPECIAL[name]
    kind = type("Kind", (Held,), {"forward": lambda self, x: body(self, x)})
    later = type("Later", (kind,), {name: other})
    stock, x = kind(), torch.randn(2, 12, 4, 4)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    for m in (stock, model):
        m.__class__ = later
    assert_same(model(x), stock(x))


@pytest.mark.parametrize("name", ["__iter__", "__getattr__"])
def test_a_container_with_other_special_methods(name: str) -> None:
    def get(self: Any, key: str) -> Any:
        return nn.Tanh() if key == "0" else nn.Module.__getattr__(self, key)

    stock = nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU()).eval()
    model, x = opswap.swap(copy.deepcopy(stock)), torch.randn(2, 12, 4, 4)
    other = {"__iter__": lambda self: iter([self[0]]), "__getattr__": get}[name]
    for m in (stock, model):
        m.__class__ = type("Later", (nn.Sequential,), {name: other})
    torch.testing.assert_close(model(x), stock(x))


def test_a_class_that_adds_nothing() -> None:
    stock, x = Wrapped(), torch.randn(2, 12, 4, 4)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    names = {
        "__doc__": "",
        "__init__": lambda self: None,
        "__deepcopy__": None,
        "__getstate__": None,
        "more": 1,
    }
    model.__class__ = type("Later", (Wrapped,), names)
    opswap.reset_stats()
    assert_same(model(x), stock(x))
    assert not opswap.stats()["original"]


class Wrapped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return shuffled(x)
