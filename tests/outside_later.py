# SPDX-License-Identifier: MIT
"""Forwards that read names, texts, defaults, and special methods that come later. All of them are watched."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple, get_type_hints

from torch import nn

from outside import Net, case, whole
from outside_reached import CASES, Case, Setting
from outside_values import put_in, set_in
from spellings import by_size

__all__ = ["CASES", "WATCHED", "Case"]

# --- special methods that come later ---


def later(body: Any, name: str, method: Any, bases: tuple[type, ...] = (Setting,), **entries: Any) -> None:
    cls = type("Late", bases, {"__module__": __name__, **entries})
    case("later", body, set_in(cls, name, method), o=lambda: cls())


class Looked(Setting):
    pass


def looks(self: Any, name: str) -> Any:
    return 3 if name == "k" else object.__getattribute__(self, name)


class Falsy(Net):
    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), 2 if self.conv else 3)


class LateConv(nn.Conv2d):
    pass


def with_late_conv() -> nn.Module:
    net = Falsy()
    net.conv = LateConv(12, 12, 3, padding=1)
    return net


class Lacking(Net):
    def forward(self, x: Any) -> Any:
        return by_size(self.conv(x), getattr(self, "missing", 2))


def look_up_missing(self: Any, name: str) -> Any:
    return 3 if name == "missing" else nn.Module.__getattr__(self, name)


later(lambda s: 2 if s.o else 3, "__bool__", lambda s: False)
later(lambda s: 2 if s.o else 3, "__len__", lambda s: 0)
later(lambda s: 3 if s.o == 2 else 2, "__eq__", lambda s, t: True)
later(lambda s: 2 if s.o != 2 else 3, "__ne__", lambda s, t: False)
later(lambda s: 2 if 5 in s.o else 3, "__contains__", lambda s, t: False, __iter__=lambda s: iter([5]))
later(
    lambda s: next(iter(s.o)),
    "__iter__",
    lambda s: iter([3]),
    (list,),
    __len__=lambda s: 2,
    __getitem__=lambda s, i: 2,
)
later(lambda s: len(s.o) + 2, "__len__", lambda s: 1, (dict,))
later(lambda s: getattr(s.o, "missing", 2), "__getattr__", lambda s, name: 3)
later(
    lambda s: next(reversed(s.o)),
    "__reversed__",
    lambda s: iter([3]),
    __len__=lambda s: 1,
    __getitem__=lambda s, i: 2,
)
later(lambda s: len(str(s.o)), "__str__", lambda s: "abc", __repr__=lambda s: "ab")
later(lambda s: len(f"{s.o}"), "__format__", lambda s, how: "abc", __repr__=lambda s: "ab")
# With it, no shuffle is found.
case("object", lambda s: s.o.k, set_in(Looked, "__getattribute__", looks), o=Looked)
whole("later", with_late_conv, set_in(LateConv, "__bool__", lambda s: False))
whole("later", Lacking, set_in(Lacking, "__getattr__", look_up_missing))

# --- names, texts and defaults ---


def named(n: Any = [2]) -> int:  # noqa: B006
    return 2


def hinted(n: Any) -> int:
    return 2


class AB:
    """12"""

    a: int
    b: int


class CD:
    c: int
    d: int


class EF:
    e: int
    f: int


class Hinted:
    pass


Hinted.__annotations__ = {"a": int, "b": int}


class Derived(AB):
    pass


Pair = namedtuple("Pair", "a b", defaults=(2,))
Typed = namedtuple("Typed", "a", defaults=(2,))


class Typed2(NamedTuple):
    a: int = 2


def ab(*, n: Any = {"a": 2}) -> int:  # noqa: B006
    return 2


def cd() -> int:
    return 2


def rebase(_: nn.Module) -> None:
    Derived.__bases__ = (CD,)


case("name", lambda s: len(cd.__name__), set_in(cd, "__name__", "abc"))
case("name", lambda s: len(hinted.__qualname__) // 3, set_in(hinted, "__qualname__", "123456789"))
case("name", lambda s: len(AB.__name__), set_in(AB, "__name__", "ABC"))
case("name", lambda s: len(EF.__qualname__), set_in(EF, "__qualname__", "EFG"))
case("name", lambda s: len(AB.__doc__), set_in(AB, "__doc__", "123"))
case("name", lambda s: len(CD.__annotations__), put_in(CD.__annotations__, "e", int))
# Its texts are evaluated, which refuses the capture here.
case("object", lambda s: len(get_type_hints(EF)), put_in(EF.__annotations__, "g", int))
case("object", lambda s: len(get_type_hints(hinted)), put_in(hinted.__annotations__, "m", int))
case("name", lambda s: len(get_type_hints(Hinted)), put_in(Hinted.__annotations__, "c", int))
case("name", lambda s: named.__defaults__[0][0], put_in(named.__defaults__[0], 0))
case("name", lambda s: ab.__kwdefaults__["n"]["a"], put_in(ab.__kwdefaults__["n"], "a"))
case("name", lambda s: Pair(1).b, set_in(Pair.__new__, "__defaults__", (3,)))
case("name", lambda s: Typed().a, set_in(Typed.__new__, "__defaults__", (3,)))
case("name", lambda s: Typed2().a, set_in(Typed2.__new__, "__defaults__", (3,)))
case("name", lambda s: 2 if len(Derived.__bases__[0].__doc__ or "") > 1 else 3, rebase)

WATCHED = ("super", "bound", "library", "dunder", "equal", "later", "name")
