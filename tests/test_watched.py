# SPDX-License-Identifier: MIT
"""Attributes that a recorded call relies on: whether they are what they were, as asking each would say."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from opswap import _core
from opswap.swap.replay.watched import Watched, _entries
from opswap.swap.runtime.members import MISSING
from opswap.swap.runtime.outside import all_unchanged
from opswap.swap.runtime.snapshot import snapshot
from opswap.swap.runtime.virtual import look_up


def function() -> int:
    return 1


def other() -> int:
    return 2


class Meta(type):
    hidden = 3


class Fixed:
    """A descriptor that hides what a dictionary holds."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.value

    def __set__(self, instance: Any, value: Any) -> None:
        raise AttributeError


class World:
    """Classes and a module of Python, made anew for each test."""

    def __init__(self) -> None:
        self.Base = type("Base", (), {"low": 1, "method": function, "both": "base"})
        self.Mixin = type("Mixin", (type("Deep", (), {}),), {"mixed": (1, 2), "low": 9})
        self.Class = type("Class", (self.Base, self.Mixin), {"own": "x", "both": "class"})
        self.Odd = Meta("Odd", (self.Base,), {"own": 4, "made": classmethod(function)})
        self.Layer = type("Layer", (nn.Module,), {"forward": function})
        self.module = types.ModuleType("some")
        self.module.value, self.module.numbers = function, (2, 6)
        self.function = types.FunctionType(function.__code__, {})

    def watches(self) -> list[tuple[Any, str, Any]]:
        names = (
            "low",
            "method",
            "both",
            "own",
            "mixed",
            "absent",
            "__doc__",
            "__eq__",
            "__len__",
            "made",
            "hidden",
        )
        found = [
            (holder, name, getattr(holder, name, MISSING))
            for holder in (self.Class, self.Odd, self.Base, self.Layer)
            for name in (*names, "__call__", "forward", "__init__", "__module__")
            if getattr(holder, name, MISSING) is getattr(holder, name, MISSING)
        ]
        found += [
            (self.module, name, getattr(self.module, name, MISSING))
            for name in ("value", "absent", "__name__")
        ]
        found.append((self.module, "numbers", snapshot(self.module.numbers)))
        return [
            *found,
            (self.function, "__code__", function.__code__),
            (look_up(self.Layer), "function", None),
        ]


CHANGES: dict[str, Callable[[World], None]] = {
    "own": lambda w: setattr(w.Class, "own", "y"),
    "own, deleted": lambda w: delattr(w.Class, "own"),
    "base": lambda w: setattr(w.Base, "low", 2),
    "base, deleted": lambda w: delattr(w.Base, "low"),
    "hidden by the class": lambda w: setattr(w.Class, "low", 1.5),
    "no longer hidden": lambda w: delattr(w.Class, "both"),
    "added": lambda w: setattr(w.Class, "absent", None),
    "added below": lambda w: setattr(w.Mixin, "absent", 0),
    "a method": lambda w: setattr(w.Base, "method", other),
    "an operator": lambda w: setattr(w.Base, "__eq__", lambda *_: True),
    "a length": lambda w: setattr(w.Mixin, "__len__", lambda _: 3),
    "a descriptor": lambda w: setattr(w.Class, "low", property(lambda _: 1)),
    "other bases": lambda w: setattr(w.Class, "__bases__", (w.Mixin, w.Base)),
    "other bases of a base": lambda w: setattr(w.Mixin, "__bases__", (type("New", (), {"absent": 1}),)),
    "an odd class": lambda w: setattr(w.Odd, "own", 5),
    "its class": lambda w: setattr(Meta, "absent", 5),
    "a forward": lambda w: setattr(w.Layer, "forward", other),
    "a look-up": lambda w: setattr(w.Layer, "__getattr__", lambda *_: None),
    "a global": lambda w: setattr(w.module, "value", other),
    "a global, deleted": lambda w: delattr(w.module, "value"),
    "a global, added": lambda w: setattr(w.module, "absent", 1),
    "a module's look-up": lambda w: setattr(w.module, "__getattr__", lambda name: 1),
    "a module's class": lambda w: setattr(
        w.module, "__class__", type("Lazy", (types.ModuleType,), {"value": Fixed(other)})
    ),
    "numbers": lambda w: setattr(w.module, "numbers", (2, 6.0)),
    "code": lambda w: setattr(w.function, "__code__", other.__code__),
}


@pytest.fixture(autouse=True)
def _meta() -> Iterator[None]:
    yield
    if "absent" in vars(Meta):
        del Meta.absent


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change: str) -> None:
    world = World()
    watches = world.watches()
    watched = Watched(watches)
    assert watched.is_unchanged() and all_unchanged(watches)
    CHANGES[change](world)
    assert not watched.is_unchanged() and not all_unchanged(watches)


def test_the_same_again_and_what_means_the_same() -> None:
    world = World()
    watched = Watched(world.watches())
    world.Class.own, world.Base.low = "y", 2
    assert not watched.is_unchanged()
    world.Class.own, world.Base.low = "x", 1
    assert watched.is_unchanged()
    world.module.numbers = tuple([2, 6])  # noqa: C409, another object
    assert watched.is_unchanged()
    world.Class.unwatched = world.module.unwatched = 1
    assert watched.is_unchanged()


def test_exporters_may_replace_the_look_up_of_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(World().watches())
    monkeypatch.setattr(nn.Module, "__getattr__", lambda *_: None)
    assert watched.is_unchanged()


def test_most_are_looked_up_in_dictionaries() -> None:
    world = World()
    for holder, name, entries in (
        (world.Class, "own", 1), (world.Class, "low", 2), (world.Class, "absent", 4), (world.Class, "mixed", 3),
        (world.Layer, "__call__", 2), (world.Class, "__eq__", 4), (world.module, "value", 1),
    ):  # fmt: skip
        found = _entries(holder, name, getattr(holder, name, MISSING))
        assert found is not None and len(found) == entries
    for holder, name in (
        (world.Odd, "own"), (world.Class, "__doc__"), (world.Class, "mro"), (world.module, "__doc__"),
        (world.module, "absent"), (world.function, "__code__"),
    ):  # fmt: skip
        assert _entries(holder, name, getattr(holder, name, MISSING)) is None


def test_entries_of_the_extension() -> None:
    held: dict[str, Any] = {"a": 1.5, "b": None}
    entries = ((held, "a", (held["a"],)), (held, "b", (None,)), (held, "c", ()))
    packed = _core.pack_entries(entries)
    assert _core.entries_stand(packed) and _core.entries_stand(_core.pack_entries(()))
    for change in ({"a": 2.5}, {"c": None}, {"b": 0}):
        before = dict(held)
        held.update(change)
        assert not _core.entries_stand(packed)
        held.clear()
        held.update(before)
        assert _core.entries_stand(packed)
    del held["b"]
    assert not _core.entries_stand(packed)
    for wrong in (None, [], (1,), ((held, "a"),), ((held, 1, ()),), (([], "a", ()),), ((held, "a", (1, 2)),)):
        with pytest.raises(TypeError, match="pack_entries"):
            _core.pack_entries(wrong)
    for wrong in (None, (), _core.pack_seals(())):
        with pytest.raises((TypeError, ValueError)):
            _core.entries_stand(wrong)


def test_kinds_of_tensors() -> None:
    x = torch.zeros(2, 3, 4, 5)
    kinds = [
        x,
        x.double(),
        x.bfloat16(),
        x.half(),
        x.long(),
        x.int(),
        x[:1],
        x[0],
        x.transpose(1, 2),
        x[..., :2],
    ]
    kinds += [
        x.contiguous(memory_format=torch.channels_last),
        x[::2],
        torch.zeros(2, 3, 4, 5, 1),
        torch.zeros(()),
    ]
    found = [_core.kind_of(t, 1 << 40) for t in kinds]
    assert len(set(found)) == len(kinds) and None not in found
    assert _core.kind_of(torch.ones(2, 3, 4, 5), 120) == found[0] and _core.kind_of(x, 119) is None
    for none in (x.to("meta"), x.to_sparse(), 1, None):
        assert _core.kind_of(none, 1 << 40) is None
    for wrong in ((x,), (x, -1), (x, 1.5), (x, 1, 2), ()):
        with pytest.raises(TypeError, match="kind_of"):
            _core.kind_of(*wrong)


def test_names_that_shall_not_be_held() -> None:
    world = World()
    watched = Watched(world.watches(), ((world.module, ("enumerate", "len")), (world.Class, ())))
    assert watched.is_unchanged()
    world.module.len = len
    assert not watched.is_unchanged()
    del world.module.len
    assert watched.is_unchanged()
    world.Class.own = "y"
    world.module.enumerate = enumerate
    assert not watched.is_unchanged()
