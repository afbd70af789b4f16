# SPDX-License-Identifier: MIT
"""Forwards behind a shuffle that read what people read, and what happens to it between two calls.

Each is `add(name, body, *changes, setup=...)`: body(model, x), changes(model) one after another, setup(model) at first.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import math
import numbers
import operator
import re
import string
import sys
import types
import weakref
from collections import ChainMap, Counter, UserDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial, partialmethod, reduce, singledispatch
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outside_children import Tree
from spellings import by_size

__all__ = ["CASES", "Forward", "reset"]

ME = sys.modules[__name__]
BOX = [2]
TABLE = {"a": 2}
NUMBERS = np.array([1.0, 2.0])
SENTINEL = object()


@dataclass(frozen=True)
class Forward:
    """A class of models, and what is done to one between two calls."""

    name: str
    make: Callable[[], nn.Module]
    changes: tuple[Callable[[nn.Module], Any], ...]


CASES: list[Forward] = []


def reset() -> None:
    """Bring back what changes have written to outside of the models."""
    BOX[:] = [2]
    TABLE.clear()
    TABLE["a"] = 2
    NUMBERS[:] = [1.0, 2.0]
    Holder.steps, Holder.table = 2, {"k": 2}
    Holder.__dict__["described"].v = 2
    noted.k = 2
    vars(functools).pop("another_", None)
    cached.cache_clear()


def add(
    name: str,
    body: Callable[[Any, Tensor], Any],
    *changes: Callable[[Any], Any],
    setup: Callable[[Any], Any] | None = None,
    base: type[nn.Module] = Tree,
) -> None:
    class Made(base):
        def __init__(self) -> None:
            super().__init__()
            if setup is not None:
                setup(self)

        def forward(self, x: Tensor) -> Tensor:
            return body(self, by_size(self.conv(x)))

    CASES.append(Forward(name, Made, changes))


def put(**attributes: Any) -> Callable[[Any], None]:
    """Set attributes; functions make the value."""

    def apply(m: Any) -> None:
        for name, value in attributes.items():
            setattr(m, name, value() if isinstance(value, types.FunctionType) else value)

    return apply


def count_up(m: Any) -> None:
    BOX[0] += 1


def parameter(*size: int) -> Callable[[], nn.Parameter]:
    return lambda: nn.Parameter(torch.ones(size))


def add_layer(m: Any) -> None:
    m.add_module("more", nn.Linear(2, 2))


def add_parameter(m: Any) -> None:
    m.register_parameter("another", nn.Parameter(torch.ones(3)))


def add_buffer(m: Any) -> None:
    m.register_buffer("another", torch.ones(3))


def add_below(m: Any) -> None:
    m.seq[1].append(nn.Linear(2, 2))


def add_block(m: Any) -> None:
    m.blocks.append(nn.ReLU())


def reorder(m: Any) -> None:
    m.add_module("conv", m._modules.pop("conv"))


def tie(m: Any) -> None:
    m.other.weight = m.seq[1][0].weight


# --- attributes, properties, descriptors, objects ---


class Descriptor:
    """Answers with its own value."""

    def __init__(self, v: int) -> None:
        self.v = v

    def __get__(self, owner: Any, cls: Any = None) -> int:
        return self.v


class Holder(Tree):
    """Has attributes of many kinds."""

    described = Descriptor(2)
    steps = 2
    table: ClassVar[dict[str, int]] = {"k": 2}

    @property
    def doubled(self) -> int:
        return self.steps * 2

    @cached_property
    def kept(self) -> int:
        return BOX[0]

    @classmethod
    def of_class(cls) -> int:
        return cls.steps

    @staticmethod
    def of_nobody() -> int:
        return BOX[0]

    def times(self, k: int, x: Tensor) -> Tensor:
        return x * k * self.steps

    twice = partialmethod(times, 2)


class Guessing(Tree):
    def __getattr__(self, name: str) -> Any:
        return BOX[0] if name == "magic" else super().__getattr__(name)


class Defaults:
    g = 2

    def f(self) -> int:
        return self.g


class Operators:
    """A number of sorts."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __mul__(self, x: Tensor) -> Tensor:
        return x * self.k

    def __index__(self) -> int:
        return self.k

    def __bool__(self) -> bool:
        return self.k > 2

    def __eq__(self, other: object) -> bool:
        return self.k == other

    __hash__ = None

    def __iter__(self) -> Any:
        return iter(range(self.k))


@dataclass
class Config:
    g: int = 2
    steps: list[int] = field(default_factory=lambda: [1, 2])


class Settings(UserDict):
    pass


config = put(cfg=lambda: Config())
bigger = lambda m: setattr(m.cfg, "g", 3)  # noqa: E731
longer = lambda m: m.cfg.steps.insert(0, 5)  # noqa: E731
add(
    "a descriptor",
    lambda s, x: x * s.described,
    lambda m: put(v=3)(Holder.__dict__["described"]),
    base=Holder,
)
add("a property", lambda s, x: x * s.doubled, put(steps=3), base=Holder)
add("a cached property", lambda s, x: x * s.kept, count_up, lambda m: vars(m).pop("kept", None), base=Holder)
add("a class method", lambda s, x: x * s.of_class(), lambda m: put(steps=4)(Holder), base=Holder)
add("a static method", lambda s, x: x * s.of_nobody(), count_up, base=Holder)
add("a partial method", lambda s, x: s.twice(x), lambda m: put(steps=5)(Holder), base=Holder)
add("a table of the class", lambda s, x: x * s.table["k"], lambda m: Holder.table.update(k=3), base=Holder)
add("__getattr__", lambda s, x: x * s.magic, count_up, base=Guessing)
add("a default of a class", lambda s, x: x * s.cfg.g, bigger, setup=put(cfg=lambda: Defaults()))
add(
    "a method of an object",
    lambda s, x: x * s.cfg.f(),
    lambda m: put(f=lambda: lambda: 7)(m.cfg),
    setup=put(cfg=lambda: Defaults()),
)
add(
    "a bound method",
    lambda s, x: x * s.f(),
    lambda m: put(g=3)(m.cfg),
    setup=lambda m: put(cfg=(c := Defaults()), f=c.f)(m),
)
add(
    "a weak reference",
    lambda s, x: x * s.w().g,
    bigger,
    setup=lambda m: put(cfg=(c := Config()), w=weakref.ref(c))(m),
)
add("an operator", lambda s, x: s.o * x, lambda m: put(k=3)(m.o), setup=put(o=lambda: Operators(2)))
add(
    "an index", lambda s, x: x * [1, 2, 3, 4][s.o], lambda m: put(k=3)(m.o), setup=put(o=lambda: Operators(2))
)
add(
    "a truth value",
    lambda s, x: x * (2 if s.o else 3),
    lambda m: put(k=3)(m.o),
    setup=put(o=lambda: Operators(2)),
)
add(
    "an equality",
    lambda s, x: x * (1 + (s.o == 2)),
    lambda m: put(k=3)(m.o),
    setup=put(o=lambda: Operators(2)),
)
add(
    "an iteration",
    lambda s, x: x * len(list(s.o)),
    lambda m: put(k=3)(m.o),
    setup=put(o=lambda: Operators(2)),
)
add("a dataclass", lambda s, x: x * s.cfg.g + s.cfg.steps[0], bigger, longer, setup=config)
add("dataclasses.replace", lambda s, x: x * dataclasses.replace(s.cfg, steps=[]).g, bigger, setup=config)
add("dataclasses.asdict", lambda s, x: x * dataclasses.asdict(s.cfg)["g"], bigger, setup=config)
add("dataclasses.astuple", lambda s, x: x * dataclasses.astuple(s.cfg)[0], bigger, setup=config)
add("equal dataclasses", lambda s, x: x * (2 if s.cfg == Config() else 3), longer, setup=config)
add("str.format", lambda s, x: x * float("{.g}".format(s.cfg)), bigger, setup=config)  # noqa: UP032
add("an f-string", lambda s, x: x * float(f"{s.cfg.g}"), bigger, setup=config)
add(
    "a template", lambda s, x: x * float(string.Template("$a").substitute(TABLE)), lambda m: TABLE.update(a=3)
)
add(
    "a user's dict",
    lambda s, x: x * s.cfg["g"],
    lambda m: m.cfg.update(g=3),
    setup=put(cfg=lambda: Settings(g=2)),
)
add(
    "a chain of dicts",
    lambda s, x: x * s.cfg["g"],
    lambda m: m.cfg.maps[1].update(g=3),
    setup=put(cfg=lambda: ChainMap({}, {"g": 2})),
)
add(
    "a Counter", lambda s, x: x * s.cfg["g"], lambda m: m.cfg.update("g"), setup=put(cfg=lambda: Counter(g=2))
)
add(
    "a defaultdict",
    lambda s, x: x * s.cfg["z"],
    lambda m: m.cfg.update(z=4),
    setup=put(cfg=lambda: defaultdict(lambda: 2)),
)
add("a deque", lambda s, x: x * s.v[0], lambda m: m.v.appendleft(5), setup=put(v=lambda: deque([2])))
add(
    "sorted objects",
    lambda s, x: x * min(s.v, key=lambda o: o.g).g,
    lambda m: put(g=1)(m.v[1]),
    setup=put(v=lambda: [Config(2), Config(3)]),
)

# --- values, functions, texts ---


class Kind(enum.IntEnum):
    A = 2
    B = 3


@cache
def cached(n: int) -> int:
    return n + BOX[0]


@singledispatch
def dispatched(value: Any) -> int:
    return 2


@dispatched.register
def _(value: str) -> int:
    return 3


def noted() -> None:
    """Has an attribute."""


noted.k = 2


def generates() -> Any:
    yield from BOX


def in_try(s: Any, x: Tensor) -> Tensor:
    try:
        return x * TABLE["z"]
    except KeyError:
        return x


def in_finally(s: Any, x: Tensor) -> Tensor:
    try:
        y = x * TABLE["a"]
    finally:
        pass
    return y


def without_gradient(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return x + y


def under_autocast(s: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return s.conv(x).float()


def trains_in_between(s: Any, x: Tensor) -> Tensor:
    s.bn.train()
    return s.bn(x)


def flips_a_flag(s: Any, x: Tensor) -> Tensor:
    before, s.bn.training = s.bn.training, False
    y = s.bn(x)
    s.bn.training = before
    return y


def remembers(s: Any, x: Tensor) -> Tensor:
    if tuple(x.shape) not in s.memo:
        s.memo[tuple(x.shape)] = len(s.memo) + 2
    return x * s.memo[tuple(x.shape)]


def by_mode(s: Any, x: Tensor) -> Tensor:
    match s.mode:
        case "a":
            return x
        case {"k": v}:
            return x * v
        case [_, *rest]:
            return x * len(rest)
    return x * 9


def shape_by_pattern(s: Any, x: Tensor) -> Tensor:
    match x.shape:
        case (_, channels, _, _):
            return x * channels
        case _:
            return x


def class_by_pattern(s: Any, x: Tensor) -> Tensor:
    match x:
        case Tensor():
            return x * 2
        case _:
            return x


def choose(m: Any) -> None:
    m.i = 2


add("an IntEnum", lambda s, x: x * s.e, put(e=Kind.B), setup=put(e=Kind.A))
add("a member by name", lambda s, x: x * Kind[s.e].value, put(e="B"), setup=put(e="A"))
add("a number of NumPy", lambda s, x: x * float(s.n), put(n=np.float32(3)), setup=put(n=np.float64(2)))
add("an array", lambda s, x: x * float(np.sum(NUMBERS)), lambda m: NUMBERS.fill(4))
add("-0.0", lambda s, x: x * math.copysign(1, s.c), put(c=-0.0), setup=put(c=0.0))
add("1 and 1.0", lambda s, x: x * (2 if str(s.c) == "1" else 3), put(c=1.0), setup=put(c=1))
add("lru_cache", lambda s, x: x * cached(2), lambda m: count_up(m) or cached.cache_clear())
add(
    "a partial",
    lambda s, x: s.f(x),
    lambda m: m.f.args[0].insert(0, 4),
    setup=put(f=lambda: partial(lambda k, y: y * k[0], [2])),
)
add("singledispatch", lambda s, x: x * dispatched(s.v), put(v="s"), setup=put(v=1))
add("reduce", lambda s, x: x * reduce(operator.mul, BOX), lambda m: BOX.append(3))
add("a generator", lambda s, x: x * sum(generates()), lambda m: BOX.append(1))
add("a comprehension", lambda s, x: x * sum([b for b in BOX]), lambda m: BOX.append(1))  # noqa: C416
add("an attribute of a function", lambda s, x: x * noted.k, lambda m: put(k=3)(noted))
add("a mutable default", lambda s, x, k=BOX: x * len(k), lambda m: BOX.append(4))
add("attrgetter", lambda s, x: x * operator.attrgetter("cfg.g")(s), bigger, setup=config)
add("itemgetter", lambda s, x: x * operator.itemgetter("a")(TABLE), lambda m: TABLE.update(a=3))
add(
    "a name made of a number",
    lambda s, x: getattr(s, f"b{s.i}")(x),
    choose,
    put(b2=lambda: nn.Tanh()),
    setup=put(i=1, b1=lambda: nn.ReLU(), b2=lambda: nn.Sigmoid()),
)
add("a function by name", lambda s, x: getattr(F, s.act)(x), put(act="tanh"), setup=put(act="relu"))
add("a method by name", lambda s, x: getattr(x, s.act)(), put(act="tanh"), setup=put(act="relu"))
add("a pattern", lambda s, x: x * len(re.findall(r"\d", s.text)), put(text="123"), setup=put(text="12"))
add("try", in_try, lambda m: TABLE.update(z=3))
add("finally", in_finally, lambda m: TABLE.update(a=3))
add("no_grad", without_gradient)
add("autocast", under_autocast)
add("train() in between", trains_in_between, lambda m: m.eval() and None)
add("a flag in between", flips_a_flag)
add("a memory of shapes", remembers, lambda m: m.memo.clear(), setup=lambda m: put(memo={})(m))
add(
    "match",
    by_mode,
    put(mode=lambda: {"k": 3}),
    put(mode=lambda: [1, 2, 3]),
    put(mode=5),
    setup=put(mode="a"),
)
add("a pattern of a shape", shape_by_pattern)
add("a pattern of a class", class_by_pattern)
add("the class of a tensor", lambda s, x: x * (2 if x.__class__ == Tensor else 3))
add("the name of its class", lambda s, x: x * len(x.__class__.__name__))
add("its class as a key", lambda s, x: x * {Tensor: 2}.get(x.__class__, 3))
add("the bases of its class", lambda s, x: x * (2 if Tensor in x.__class__.__mro__ else 3))
add("the class of a size", lambda s, x: x * (2 if x.shape[1].__class__ is int else 3))
add("a power", lambda s, x: torch.pow(x, 2))
add(
    "a power behind isinstance",
    lambda s, x: torch.pow(x, 2) if isinstance(x, (list, numbers.Number, Tensor)) else x,
)
add("a size as a Number", lambda s, x: x * (2 if isinstance(x.size(1), numbers.Number) else 3))
add("a shape as a Sequence", lambda s, x: x * (2 if isinstance(x.shape, collections.abc.Sequence) else 3))
add("globals()", lambda s, x: x * globals()["BOX"][0], count_up)
