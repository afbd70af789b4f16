# SPDX-License-Identifier: MIT
"""Forwards that reach what they read by a detour: by super(), bound methods in C, names of libraries, own dunder names.

All of them are watched: a swap finds the shuffle in each.
"""

from __future__ import annotations

import math
import types
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from outside import Net, case, whole
from outside_rest import CASES, Case
from outside_values import put_in, set_in
from spellings import by_size

__all__ = ["CASES", "Case", "Setting"]

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

# --- what somebody set on libraries ---

for _holder in (torch, F, nn, nn.Module, nn.Conv2d, torch.Tensor, math, np):
    _holder.opswap_k = 2
torch.opswap_table = {"k": 2}
torch.opswap_setting = Setting()
F.opswap_groups = lambda: 2
nn.Module.opswap_hidden = 2
nn.Conv2d.opswap_listed = [2]
nn.Conv2d.opswap_groups = lambda self: 2


case("library", lambda s: torch.opswap_k, set_in(torch, "opswap_k"))
case("library", lambda s: F.opswap_k, set_in(F, "opswap_k"))
case("library", lambda s: nn.opswap_k, set_in(nn, "opswap_k"))
case("library", lambda s: math.opswap_k, set_in(math, "opswap_k"))
case("library", lambda s: np.opswap_k, set_in(np, "opswap_k"))
case("library", lambda s: torch.Tensor.opswap_k, set_in(torch.Tensor, "opswap_k"))
case("library", lambda s: s.opswap_k, set_in(nn.Module, "opswap_k"))
case("library", lambda s: s.opswap_hidden, lambda m: setattr(m, "opswap_hidden", 3))
case("library", lambda s: s.conv.opswap_k, set_in(nn.Conv2d, "opswap_k"))
case("library", lambda s: s.conv.opswap_hidden, lambda m: setattr(m.conv, "opswap_hidden", 3))
case("library", lambda s: s.conv.opswap_listed[0], put_in(nn.Conv2d.opswap_listed, 0))
case("library", lambda s: nn.Conv2d.opswap_listed[0], put_in(nn.Conv2d.opswap_listed, 0, 6))
case("library", lambda s: torch.opswap_table["k"], put_in(torch.opswap_table, "k"))
case("library", lambda s: torch.opswap_setting.k, set_in(torch.opswap_setting, "k"))
case("library", lambda s: F.opswap_groups(), set_in(F, "opswap_groups", three))
case("library", lambda s: s.conv.opswap_groups(), set_in(nn.Conv2d, "opswap_groups", three))
case("library", lambda s: getattr(torch, "opswap_new", 2), set_in(torch, "opswap_new"))
case("library", lambda s: getattr(s.conv, "opswap_new", 2), set_in(nn.Conv2d, "opswap_new"))
case("library", lambda s: getattr(nn.Conv2d, "opswap_other", 2), set_in(nn.Module, "opswap_other"))

# --- names with two underscores ---


class Versioned:
    __groups__ = 2
    __table__ = {"k": 2}  # noqa: RUF012


class OtherVersion(Versioned):
    pass


class HiddenVersion(Versioned):
    __groups__ = 5

    def groups(self) -> int:
        return super().__groups__


class Layer(nn.Conv2d):
    __groups__ = 2


class Own(Net):
    __groups__ = 2
    __text__ = 2

    def __init__(self) -> None:
        super().__init__()
        self.other = Layer(12, 12, 1)

    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), self.__groups__)


class OfChild(Own):
    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), self.other.__groups__)


class ByInstance(Own):
    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), self.__text__)


class ByText(Own):
    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), getattr(self, f"__{'text'}__"))


class SlottedVersion:
    __slots__ = ("__groups__",)

    def __init__(self) -> None:
        self.__groups__ = 2


VERSION = types.ModuleType("opswap_test_version")
VERSION.__version__ = VERSION.__groups__ = 2
OBJECT, OTHER_OBJECT = Versioned(), Versioned()

case("dunder", lambda s: Versioned.__groups__, set_in(Versioned, "__groups__"))
case("dunder", lambda s: OtherVersion.__groups__, set_in(OtherVersion, "__groups__", 6))
case("dunder", lambda s: HiddenVersion().groups(), set_in(Versioned, "__groups__", 4))
case("dunder", lambda s: Versioned.__table__["k"], put_in(Versioned.__table__, "k"))
case("dunder", lambda s: OBJECT.__groups__, set_in(OBJECT, "__groups__", 6))
case("dunder", lambda s: getattr(OTHER_OBJECT, "__gro" + "ups__"), set_in(OTHER_OBJECT, "__groups__", 6))
case("dunder", lambda s: s.o.__groups__, lambda m: setattr(m.o, "__groups__", 6), o=Versioned)
case("dunder", lambda s: s.o.__groups__, lambda m: setattr(m.o, "__groups__", 6), o=SlottedVersion)
case("dunder", lambda s: VERSION.__version__, set_in(VERSION, "__version__"))
case("dunder", lambda s: getattr(VERSION, "__gro" + "ups__"), set_in(VERSION, "__groups__"))
case("dunder", lambda s: len(VERSION.__name__) // 6, set_in(VERSION, "__name__", "123456" * 2))
whole("dunder", Own, set_in(Own, "__groups__"))
whole("dunder", OfChild, set_in(Layer, "__groups__"))
whole("dunder", ByInstance, lambda m: setattr(m, "__text__", 3))
whole("dunder", ByText, lambda m: setattr(m, "__text__", 3))

# --- equal values that are not the same ---


def equal(body: Any, then: Any, now: Any) -> None:
    case("equal", body, lambda m: setattr(m, "v", now), v=lambda: then)


def sign(value: float) -> int:
    return 2 if math.copysign(1, value) > 0 else 3


equal(lambda s: len(str(s.v)) - 1, Decimal("1.0"), Decimal("1.00"))
equal(lambda s: len(str(s.v[0])) - 1, (Decimal("1.0"),), (Decimal("1.00"),))
equal(lambda s: 2 + s.v.stop // 5, range(0), range(5, 5))
equal(lambda s: 2 + s.v[0].stop // 5, [range(0)], [range(5, 5)])
equal(lambda s: sign(s.v.imag), complex(1, 0.0), complex(1, -0.0))
equal(lambda s: sign(s.v.real), complex(0.0, 1), complex(-0.0, 1))
equal(lambda s: sign(s.v["a"].imag), {"a": complex(1, 0.0)}, {"a": complex(1, -0.0)})
equal(lambda s: sign(next(iter(s.v))), frozenset({0.0}), frozenset({-0.0}))
equal(lambda s: 2 if str(*s.v) == "1" else 3, {1}, {True})
equal(lambda s: 2 + [*s.v].index(8), {8, 0}, {0, 8})
equal(lambda s: sign(s.v), np.float64(0.0), np.float64(-0.0))
equal(lambda s: sign(s.v[0]), [np.float32(0.0)], [np.float32(-0.0)])
equal(lambda s: len(str(s.v)) // 3, np.datetime64("2000-01", "M"), np.datetime64("2000-01-01", "D"))
