# SPDX-License-Identifier: MIT
"""More forwards behind a shuffle: state in odd containers, and objects and classes that answer for themselves."""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import decimal
import enum
import functools
import itertools
import json
import logging
import operator
import os
import string
import sys
import threading
import types
import typing
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hostile_forwards import add, put

__all__ = ["reset"]

ME = sys.modules[__name__]
PAIR = collections.namedtuple("PAIR", "a b")
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("groups", default=2)
LOG = logging.getLogger("opswap.tests.hostile")


class Point(NamedTuple):
    k: int


class Counting(type):
    """A class that has a length, a property and names of its own making."""

    k = 2

    def __len__(cls) -> int:
        return cls.k

    @property
    def doubled(cls) -> int:
        return cls.k * 2

    def __getattr__(cls, name: str) -> int:
        return Counting.k if name == "made_up" else super().__getattribute__(name)

    def __getitem__(cls, i: int) -> int:
        return cls.k + i

    def __contains__(cls, i: int) -> bool:
        return i == cls.k

    def __instancecheck__(cls, other: Any) -> bool:
        return Counting.k > 2


class Counted(metaclass=Counting):
    def __class_getitem__(cls, i: int) -> int:
        return cls.k * i

    def method(self) -> int:
        return 2


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


class Kind(enum.Enum):
    A = 2
    B = 3


class Slotted:
    """Has a slot that is empty."""

    __slots__ = ("k", "more")

    def __init__(self) -> None:
        self.k = 2


class Defaulting(dict):
    """A dict that answers for keys that it has not."""

    k = 2

    def __missing__(self, key: str) -> int:
        return self.k


class Answers:
    """Answers every question of the language by its own number."""

    def __init__(self) -> None:
        self.k = 2

    def __call__(self) -> int:
        return self.k

    def __len__(self) -> int:
        return self.k

    def __contains__(self, i: int) -> bool:
        return i < self.k

    def __getitem__(self, i: int) -> int:
        return self.k + i

    def __int__(self) -> int:
        return self.k

    def __float__(self) -> float:
        return float(self.k)

    def __round__(self) -> int:
        return self.k

    def __format__(self, how: str) -> str:
        return str(self.k)

    def __str__(self) -> str:
        return str(self.k)

    def __lt__(self, other: int) -> bool:
        return self.k < other

    def __neg__(self) -> int:
        return -self.k

    def __reversed__(self) -> Any:
        return iter([self.k])

    def __rmul__(self, x: Tensor) -> Tensor:
        return x * self.k

    def __dir__(self) -> list[str]:
        return ["a"] * self.k

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self.k, other

    def __matmul__(self, other: int) -> int:
        return self.k

    def __missing(self) -> int:
        return self.k

    def hidden(self) -> int:
        return self.__missing()


class Follows:
    """Takes its attributes from elsewhere."""

    def __init__(self) -> None:
        self.other = Answers()

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["other"], name)


class Switch:
    """A setting that is switched by a class method."""

    current = 2

    @classmethod
    def get(cls) -> int:
        return cls.current


@dataclass
class Tree:
    k: int = 2
    below: Any = None
    parts: dict[str, list[int]] = field(default_factory=lambda: {"a": [2]})


def remembered(f: Callable[..., Any]) -> Callable[..., Any]:
    """Keeps the first answer for each argument."""
    kept: dict[Any, Any] = {}

    @functools.wraps(f)
    def run(*args: Any) -> Any:
        if args not in kept:
            kept[args] = f(*args)
        return kept[args]

    run.kept = kept
    return run


@remembered
def slow(n: int) -> int:
    return Switch.current + n


def with_default(x: Tensor, k: int = 2) -> Tensor:
    return x * k


def annotated(x: Tensor, k: int = 2) -> Tensor:
    return x * len(annotated.__annotations__)


def of_a_closure() -> tuple[Callable[[], int], Callable[[int], None]]:
    held = [2]
    return (lambda: held[0]), (lambda k: held.__setitem__(0, k))


READ, WRITE = of_a_closure()
ENVIRONMENT = "OPSWAP_TESTS_HOSTILE"
_filters = list(warnings.filters)
_decimal, _precision = decimal.getcontext().prec, torch.get_float32_matmul_precision()


def reset() -> None:
    """Bring back what changes have written to outside of the models."""
    Counting.k = Switch.current = Defaulting.k = 2
    VARIABLE.set(2)
    WRITE(2)
    slow.kept.clear()
    with_default.__defaults__ = (2,)
    annotated.__annotations__ = {"x": Tensor, "k": int}
    os.environ.pop(ENVIRONMENT, None)
    decimal.getcontext().prec = _decimal
    torch.set_float32_matmul_precision(_precision)
    LOG.setLevel(logging.WARNING)
    warnings.filters[:] = _filters
    vars(ME).pop("NEW", None)
    vars(ME).pop("more", None)
    for holder in (with_default, Kind.A, Counted.method):
        vars(holder).pop("more", None)
    Kind.B.groups = Answers.hidden.groups = 2
    if "more" in vars(Switch):
        del Switch.more


odd = put(o=lambda: Answers())
larger = lambda m: setattr(m.o, "k", 3)  # noqa: E731
tree = put(o=lambda: Tree(below=Tree(below=Tree())))


def set_k(holder: Any) -> Callable[[Any], None]:
    return lambda m: setattr(holder, "k", 3)


# --- containers of other modules ---
add(
    "array.array",
    lambda s, x: x * s.v[0],
    lambda m: m.v.insert(0, 3),
    setup=put(v=lambda: array.array("i", [2])),
)
add("bytearray", lambda s, x: x * s.v[0], lambda m: m.v.insert(0, 3), setup=put(v=lambda: bytearray([2])))
add(
    "memoryview",
    lambda s, x: x * s.v[0],
    lambda m: m.b.__setitem__(0, 3),
    setup=lambda m: put(b=(b := bytearray([2])), v=memoryview(b))(m),
)
add(
    "ctypes",
    lambda s, x: x * s.v.value,
    lambda m: setattr(m.v, "value", 3),
    setup=put(v=lambda: ctypes.c_int(2)),
)
add("a named tuple", lambda s, x: x * s.v.a, put(v=PAIR(3, 1)), setup=put(v=PAIR(2, 1)))
add(
    "a NamedTuple by _replace",
    lambda s, x: x * s.v._replace(k=s.v.k).k,
    put(v=Point(3)),
    setup=put(v=Point(2)),
)
add(
    "a mapping proxy",
    lambda s, x: x * s.v["a"],
    lambda m: m.d.update(a=3),
    setup=lambda m: put(d=(d := {"a": 2}), v=types.MappingProxyType(d))(m),
)
add(
    "a view of keys",
    lambda s, x: x * len(s.v),
    lambda m: m.d.update(b=3),
    setup=lambda m: put(d=(d := {"a": 2}), v=d.keys())(m),
)
add(
    "an OrderedDict",
    lambda s, x: x * next(iter(s.v.values())),
    lambda m: m.v.move_to_end("b", last=False),
    setup=put(v=lambda: collections.OrderedDict(a=2, b=3)),
)
add("a set of names", lambda s, x: x * (1 + ("b" in s.v)), lambda m: m.v.add("b"), setup=put(v=lambda: {"a"}))
add(
    "a deep list",
    lambda s, x: x * s.v[0][0][0],
    lambda m: m.v[0][0].insert(0, 3),
    setup=put(v=lambda: [[[2]]]),
)
add(
    "a list that holds itself",
    lambda s, x: x * len(s.v),
    lambda m: m.v.append(3),
    setup=lambda m: put(v=(v := []))(m) or v.append(v),
)
add(
    "dataclasses below each other",
    lambda s, x: x * s.o.below.below.k,
    lambda m: setattr(m.o.below.below, "k", 3),
    setup=tree,
)
add(
    "a list in a dict of a dataclass",
    lambda s, x: x * s.o.parts["a"][-1],
    lambda m: m.o.parts["a"].append(3),
    setup=tree,
)
add(
    "a namespace",
    lambda s, x: x * s.v.k,
    lambda m: setattr(m.v, "k", 3),
    setup=put(v=lambda: types.SimpleNamespace(k=2)),
)
add(
    "a weak dictionary",
    lambda s, x: x * len(s.v),
    lambda m: m.v.clear(),
    setup=lambda m: put(c=(c := Answers()), v=weakref.WeakValueDictionary(a=c))(m),
)
add(
    "a weak proxy",
    lambda s, x: x * s.v.k,
    lambda m: setattr(m.c, "k", 3),
    setup=lambda m: put(c=(c := Answers()), v=weakref.proxy(c))(m),
)
add(
    "an array by item",
    lambda s, x: x * s.v.item(0),
    lambda m: m.v.fill(3),
    setup=put(v=lambda: np.array([2])),
)
add(
    "the shape of an array",
    lambda s, x: x * s.v.shape[0],
    lambda m: m.v.resize((3,), refcheck=False),
    setup=put(v=lambda: np.array([2, 2])),
)
add("an iterator that is shared", lambda s, x: x * next(s.v), setup=put(v=lambda: itertools.cycle([2, 3])))
add("a counter of itertools", lambda s, x: x * next(s.v), setup=put(v=lambda: itertools.count(2)))
add("a context variable", lambda s, x: x * VARIABLE.get(), lambda m: VARIABLE.set(3) and None)
add(
    "a local of threads",
    lambda s, x: x * s.v.k,
    lambda m: setattr(m.v, "k", 3),
    setup=lambda m: put(v=(v := threading.local()))(m) or setattr(v, "k", 2),
)
add(
    "a lock",
    lambda s, x: x * (2 if s.v.locked() else 3),
    lambda m: m.v.acquire() and None,
    setup=put(v=lambda: threading.Lock()),
)

# --- what an object answers for itself ---
QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "a call": lambda o: o(),
    "len": len,
    "in": lambda o: 1 + (2 in o),
    "an element": lambda o: o[0],
    "int": int,
    "float": float,
    "round": round,
    "format": lambda o: float(f"{o:d}"),
    "str": lambda o: float(str(o)),
    "smaller": lambda o: 1 + (o < 3),
    "minus": operator.neg,
    "reversed": lambda o: next(reversed(o)),
    "dir": lambda o: len(dir(o)),
    "divmod": lambda o: divmod(o, 1)[0],
    "matmul": lambda o: o @ 1,
    "a private method": lambda o: o.hidden(),
    "sorted": lambda o: 5 if sorted([o, 2.5], key=float)[0] == 2.5 else 7,
    "max": lambda o: float(max(o, 2.5, key=float)),
    "sum": lambda o: sum([o()], 0),
    "zip": lambda o: len(list(zip(range(len(o)), range(9), strict=False))),
    "enumerate": lambda o: sum(i for i, _ in enumerate(range(len(o)))),
    "any": lambda o: 2 if any(k in o for k in (2, 5)) else 3,
    "map": lambda o: next(map(float, [o])),
    "a slice": lambda o: len([1, 2, 3, 4][: int(o)]),
    "pow": lambda o: pow(int(o), 2),
    "json": lambda o: json.loads(json.dumps({"k": o.k}))["k"],
    "getattr of a method": lambda o: getattr(o, "hidden")(),  # noqa: B009
    "operator.call": lambda o: operator.methodcaller("hidden")(o),
    "a template": lambda o: float(string.Template("$k").substitute(k=o)),
    "percent": lambda o: float("%s" % o),  # noqa: UP031
    "typing.cast": lambda o: typing.cast(Answers, o).k,
    "functools.reduce": lambda o: functools.reduce(lambda a, b: a * b, [o.k, 2]),
    "accumulate": lambda o: list(itertools.accumulate([o.k, 2]))[-1],
}
for _name, _ask in QUESTIONS.items():
    add(f"an object and {_name}", lambda s, x, ask=_ask: x * ask(s.o), larger, setup=odd)
add("an object on the right", lambda s, x: x * s.o, larger, setup=odd)
add(
    "attributes from elsewhere",
    lambda s, x: x * s.o.k,
    lambda m: setattr(m.o.other, "k", 3),
    setup=put(o=lambda: Follows()),
)
add(
    "__missing__",
    lambda s, x: x * s.o["z"],
    lambda m: setattr(Defaulting, "k", 3),
    setup=put(o=lambda: Defaulting()),
)
add(
    "a member of a flag",
    lambda s, x: x * (2 if Flags.B in s.o else 3),
    put(o=Flags.A | Flags.B),
    setup=put(o=Flags.A),
)

# --- classes of classes ---
META: dict[str, Callable[[], Any]] = {
    "len": lambda: len(Counted),
    "a property": lambda: Counted.doubled,
    "an attribute": lambda: Counted.k,
    "a name of its making": lambda: Counted.made_up,
    "a key": lambda: Counted[2],
    "in": lambda: 1 + (2 in Counted),
    "isinstance": lambda: 1 + isinstance(3, Counted),
}
for _name, _of in META.items():
    add(f"a class of classes and {_name}", lambda s, x, of=_of: x * of(), set_k(Counting))
add("a class method of another class", lambda s, x: x * Switch.get(), lambda m: setattr(Switch, "current", 3))
add(
    "a memory of answers",
    lambda s, x: x * slow(1),
    lambda m: slow.kept.clear() or setattr(Switch, "current", 3),
)
add(
    "a default that is replaced",
    lambda s, x: with_default(x),
    lambda m: setattr(with_default, "__defaults__", (3,)),
)
add("annotations", lambda s, x: annotated(x), lambda m: annotated.__annotations__.update(z=int))
