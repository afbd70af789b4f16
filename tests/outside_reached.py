# SPDX-License-Identifier: MIT
"""Forwards that reach what they read by a detour: by super(), bound methods in C, names of libraries, own dunder names.

All of them are watched: a swap finds the shuffle in each.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from outside import Net, case, whole
from outside_rest import CASES, Case
from outside_values import put_in, set_in
from spellings import by_size

__all__ = ["CASES", "WATCHED", "Case"]

# --- by super() ---


class Base(Net):
    k = 2
    table = {"k": 2}  # noqa: RUF012

    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), 2)

    def groups(self) -> int:
        return 2

    @property
    def prop(self) -> int:
        return 2

    @classmethod
    def made(cls) -> int:
        return 2

    @staticmethod
    def static() -> int:
        return 2


class Middle(Base):
    """What it gets later stands before what Base has."""


class Mixin:
    """A base beside the others."""


class Shuffles(Middle):
    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), self.groups())


class ByForward(Middle):
    def forward(self, x: Any) -> Any:
        return super().forward(x)


class ByMethod(Shuffles):
    def groups(self) -> int:
        return super().groups()


class ByConstant(Shuffles):
    k = 5

    def groups(self) -> int:
        return super().k


class ByTable(Shuffles):
    table = {"k": 5}  # noqa: RUF012

    def groups(self) -> int:
        return super().table["k"]


class ByProperty(Shuffles):
    @property
    def prop(self) -> int:
        return super().prop

    def groups(self) -> int:
        return self.prop


class ByClassMethod(Shuffles):
    @classmethod
    def made(cls) -> int:
        return super().made()

    def groups(self) -> int:
        return self.made()


class ByStaticMethod(Shuffles):
    static = None

    def groups(self) -> int:
        return super().static()


class ByMixin(Mixin, Shuffles):
    def groups(self) -> int:
        return super().groups()


class Hides(Shuffles):
    k = 5


class ByMixedConstant(Hides, Mixin, Middle):
    def groups(self) -> int:
        return super(Hides, self).k


class Plain:
    k = 2

    def groups(self) -> int:
        return 2

    @classmethod
    def made(cls) -> int:
        return cls.k


class PlainChild(Plain):
    k = 5

    def groups(self) -> int:
        return super().groups()

    @classmethod
    def made(cls) -> int:
        return super().made()


class PlainConstant(Plain):
    k = 5

    def groups(self) -> int:
        return super().k


def shuffles_more(self: Any, x: Any) -> Any:
    return by_size(self.conv(x), 3)


def three(*_: Any) -> int:
    return 3


def six(*_: Any) -> int:
    return 6


whole("super", ByForward, set_in(Base, "forward", shuffles_more))
whole("super", ByMethod, set_in(Base, "groups", three))
whole("super", ByConstant, set_in(Base, "k"))
whole("super", ByTable, put_in(Base.table, "k"))
whole("super", ByProperty, set_in(Base, "prop", property(three)))
whole("super", ByClassMethod, set_in(Base, "made", classmethod(three)))
whole("super", ByStaticMethod, set_in(Base, "static", staticmethod(three)))
whole("super", ByMixin, set_in(Mixin, "groups", six))
whole("super", ByMixedConstant, set_in(Mixin, "k", 6))
case("super", lambda s: s.o.groups(), set_in(Plain, "groups", three), o=PlainChild)
case("super", lambda s: s.o.groups(), set_in(Plain, "k"), o=PlainConstant)
case("super", lambda s: PlainChild.made(), set_in(Plain, "made", classmethod(three)))


class Between(Base):
    pass


class OverBetween(Between):
    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), self.groups())

    def groups(self) -> int:
        return super().groups()


class OverConstant(Between):
    k = 5

    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), super().k)


whole("super", OverBetween, set_in(Between, "groups", six))
whole("super", OverConstant, set_in(Between, "k", 6))

# --- by methods in C ---

TABLE = {"a": 2}
LISTED = [7, 2]
MORE = {"a": 2}
LAST = {"a": [2]}
GET = MORE.get
PAIRS = {"a": 2}
ITEM = PAIRS.__getitem__
NAMES = {"a"}
HAS = NAMES.__contains__


class Setting:
    k = 2

    def __init__(self) -> None:
        self.k = 2


SETTING = Setting()
SETTINGS = Setting()

case("bound", lambda s: s.f("a"), put_in(TABLE, "a"), f=lambda: TABLE.get)
case("bound", lambda s: s.f("a")[0], lambda m: LAST["a"].__setitem__(0, 3), f=lambda: LAST.get)
case("bound", lambda s: GET("a"), put_in(MORE, "a"))
case("bound", lambda s: ITEM("a"), put_in(PAIRS, "a"))
case("bound", lambda s: 2 if HAS("a") else 3, lambda m: NAMES.clear())
case("bound", lambda s: 2 + s.f(7), lambda m: LISTED.insert(0, 1), f=lambda: LISTED.index)
case("bound", lambda s: 1 + s.f(8), lambda m: m.f.__self__.__setitem__(0, 0), f=lambda: [8, 8].count)
case("bound", lambda s: s.f(), lambda m: m.f.__self__.append(1), f=lambda: [7, 2].__len__)
case("bound", lambda s: s.f(), lambda m: setattr(m, "f", [1, 2, 3].__len__), f=lambda: [7, 2].__len__)
case("bound", lambda s: s.f("a"), lambda m: setattr(m, "f", {"a": 3}.get), f=lambda: {"a": 2}.get)
case("bound", lambda s: s.f("a", 2), lambda m: setattr(m, "f", {"a": 3}.pop), f=lambda: {"a": 2}.get)
case(
    "bound",
    lambda s: s.f["get"]("a"),
    lambda m: m.f["get"].__self__.update(a=3),
    f=lambda: {"get": {"a": 2}.get},
)
case("bound", lambda s: s.f(), lambda m: m.f.func.__self__.update(a=3), f=lambda: partial({"a": 2}.get, "a"))
case("bound", lambda s: s.f("k"), set_in(SETTING, "k"), f=lambda: SETTING.__getattribute__)
case("bound", lambda s: s.f("k"), set_in(SETTINGS, "k"), f=lambda: vars(SETTINGS).get)

WATCHED = ("super", "bound")
