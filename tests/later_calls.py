# SPDX-License-Identifier: MIT
"""A module that finds what it calls when it runs, for tests of functions and objects that come after the swap."""

from __future__ import annotations

import argparse
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import pytest
from torch import Tensor, nn

from later import Parent

__all__ = ["HELPERS", "REACHED", "Caller", "Calls", "Hub", "Plugin", "hub_with"]


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


class Listing(UserList):
    pass


class Naming(UserDict):
    pass


class Chaining(ChainMap):
    pass


class Property(property):
    def own(self) -> None: ...


class StaticMethod(staticmethod):
    def own(self) -> None: ...


class ClassMethod(classmethod):
    def own(self) -> None: ...


class CachedProperty(cached_property):
    def own(self) -> None: ...


class Partial(partial):
    def own(self) -> None: ...


def cached(write: Callable[[Tensor], Tensor]) -> CachedProperty:
    made = CachedProperty(lambda self: write)
    made.__set_name__(Hub, "always")
    return made


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
        self.user, self.own = UserList(), (Listing(), Naming(), Chaining())
        self.space, self.options = types.SimpleNamespace(then=None), argparse.Namespace(then=None)
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
        listing, naming, chaining = self.own
        found += [*listing, *naming.values(), *chaining.values()]
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
        found += [space.then for space in (self.space, self.options) if space.then is not None]
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
    "UserList of a user": lambda c, write, _: c.own[0].append(write),
    "UserDict of a user": lambda c, write, _: c.own[1].update(then=write),
    "ChainMap of a user": lambda c, write, _: c.own[2].update(then=write),
    "SimpleNamespace": lambda c, write, _: setattr(c.space, "then", write),
    "argparse.Namespace": lambda c, write, _: setattr(c.options, "then", write),
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
    "static method of a user's kind": lambda c, write, patch: patch.setattr(Hub, "then", StaticMethod(write)),
    "property of a user's kind": lambda c, write, patch: patch.setattr(
        Hub, "always", Property(lambda self: write)
    ),
    "cached property of a user's kind": lambda c, write, patch: patch.setattr(Hub, "always", cached(write)),
    "class method of a user's kind": lambda c, write, patch: patch.setattr(
        Hub, "finish", ClassMethod(lambda cls, x: write(x))
    ),
    "partial of a user's kind": lambda c, write, _: c.listed.append(Partial(write)),
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
