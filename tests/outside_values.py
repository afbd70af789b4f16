# SPDX-License-Identifier: MIT
"""Forwards that read values which change after the swap: globals, closures, functions, objects and classes."""

from __future__ import annotations

import argparse
import enum
import math
import operator
import sys
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from torch import nn

from outside import CASES, Case, case

__all__ = ["CASES", "Case"]

# --- globals, closures, defaults and functions that are read, then changed ---

ME = sys.modules[__name__]
GROUPS = 2
GROUPS_2 = GROUPS_3 = GROUPS_4 = 2
TABLE = {"groups": 2}
NESTED = {"a": [{"b": 2}]}
LISTED = [2, 3]
SETTINGS = types.ModuleType("opswap_test_settings")
SETTINGS.GROUPS = 2
sys.modules["opswap_test_settings"] = SETTINGS


def helper(_: Any) -> int:
    return 2


def helper_2(_: Any) -> int:
    return 2


def helper_3(_: Any, n: int = 2) -> int:
    return n


def helper_4(_: Any, *, n: int = 2) -> int:
    return n


def helper_5(_: Any) -> int:
    return helper_5.groups


helper_5.groups = 2


def helper_6(_: Any) -> int:
    return helper_2(_)


def other(_: Any) -> int:
    return 3


def make_closure(n: int) -> Callable[[Any], int]:
    return lambda s: n


CLOSURE = make_closure(2)
CLOSURE_2 = make_closure([2])
CELL = CLOSURE.__closure__[0]
FUNCTIONS = {"f": helper_2}
PARTIAL = partial(helper_3, n=2)


def decorator(f: Callable[..., int]) -> Callable[..., int]:
    @wraps(f)
    def call(*args: Any) -> int:
        return f(*args)

    return call


@decorator
def decorated(s: Any) -> int:
    return GROUPS_4


def set_in(holder: Any, name: str, value: Any = 3) -> Callable[[nn.Module], None]:
    return lambda m: setattr(holder, name, value)


def put_in(holder: Any, key: Any, value: Any = 3) -> Callable[[nn.Module], None]:
    return lambda m: holder.__setitem__(key, value)


def shadowed(_: nn.Module) -> None:
    ME.max = min


case("global", lambda s: GROUPS, set_in(ME, "GROUPS"))
case("global", lambda s: TABLE["groups"], put_in(TABLE, "groups"))
case("global", lambda s: NESTED["a"][0]["b"], put_in(NESTED["a"][0], "b"))
case("global", lambda s: LISTED[0], lambda m: LISTED.reverse())
case("global", lambda s: SETTINGS.GROUPS, set_in(SETTINGS, "GROUPS"))
case("global", lambda s: helper(s), set_in(ME, "helper", other))
case("global", lambda s: helper_2(s), set_in(helper_2, "__code__", other.__code__))
case("global", lambda s: helper_3(s), set_in(helper_3, "__defaults__", (3,)))
case("global", lambda s: helper_4(s), set_in(helper_4, "__kwdefaults__", {"n": 3}))
case("global", lambda s: helper_5(s), set_in(helper_5, "groups", 3))
case("global", lambda s: CLOSURE(s), set_in(CELL, "cell_contents", 3))
case("global", lambda s: CLOSURE_2(s)[0], lambda m: CLOSURE_2(m).__setitem__(0, 3))
case("global", lambda s: FUNCTIONS["f"](s), put_in(FUNCTIONS, "f", other))
case("global", lambda s: PARTIAL(s), lambda m: PARTIAL.keywords.__setitem__("n", 3))
case("global", lambda s: decorated(s), set_in(ME, "GROUPS_4"))
case("global", lambda s: max(2, 3), shadowed)
case("global", lambda s: 3 if math.sqrt(4) == 3 else 2, set_in(ME, "math", SimpleNamespace(sqrt=lambda x: 3)))
case("global", lambda s: [GROUPS_2 for _ in range(1)].pop(), set_in(ME, "GROUPS_2"))
case("global", lambda s: (lambda: GROUPS_3)(), set_in(ME, "GROUPS_3"))
case(
    "global",
    lambda s: s.call(s),
    lambda m: set_in(m.call.__closure__[0], "cell_contents")(m),
    call=lambda: make_closure(2),
)
case("global", lambda s, n=LISTED: n[1], lambda m: LISTED.__setitem__(slice(None), [3, 2]))
case("global", lambda s: getattr(SETTINGS, "OTHER", 2), set_in(SETTINGS, "OTHER"))


def imports_settings(s: Any) -> int:
    import opswap_test_settings as settings

    return settings.MORE


SETTINGS.MORE = 2
case("global", imports_settings, set_in(SETTINGS, "MORE"))
ZERO = 0.0
case("global", lambda s: 2 if math.copysign(1, ZERO) > 0 else 3, set_in(ME, "ZERO", -0.0))
FLAG = True
case("global", lambda s: 2 if FLAG is True else 3, set_in(ME, "FLAG", 1))
PAIR = (1, 2)
case("global", lambda s: 2 if PAIR[0] is True else 3, set_in(ME, "PAIR", (True, 2)))

# --- objects and classes ---


class Config:
    GROUPS = 2
    table: ClassVar[dict[str, int]] = {"groups": 2}
    deep: ClassVar[Any] = SimpleNamespace(groups=2)

    def __init__(self) -> None:
        self.groups = 2
        self.inner = SimpleNamespace(groups=2, parts=[2])

    @property
    def prop(self) -> int:
        return self.groups

    @staticmethod
    def static() -> int:
        return 2

    @classmethod
    def clsm(cls) -> int:
        return cls.OTHER

    OTHER = 2

    def __len__(self) -> int:
        return 2


class Child(Config):
    pass


class Easy(dict):
    """Attributes are keys."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Looks:
    def __init__(self) -> None:
        self.values = {"groups": 2}

    def __getattr__(self, name: str) -> Any:
        return self.values[name]


class WithSlots:
    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups = 2


class Kind(enum.Enum):
    TWO = 2
    THREE = 3


class Described:
    def __get__(self, instance: Any, owner: Any) -> int:
        return 2


class Holder:
    groups = Described()


@dataclass
class Data:
    groups: int = 2
    parts: list[int] = field(default_factory=lambda: [2])


Point = namedtuple("Point", "a b")
GLOBAL_CONFIG = Config()
DATA = Data()
HOLDER = Holder()


class Fresh(Config):
    pass


def rename(m: nn.Module) -> None:
    m.cfg.__class__ = type("Changed", (Config,), {"prop": property(lambda s: 3)})


case("object", lambda s: s.cfg.groups, lambda m: setattr(m.cfg, "groups", 3), cfg=Config)
case("object", lambda s: s.cfg.inner.groups, lambda m: setattr(m.cfg.inner, "groups", 3), cfg=Config)
case("object", lambda s: s.cfg.inner.parts[0], lambda m: m.cfg.inner.parts.__setitem__(0, 3), cfg=Config)
case("object", lambda s: s.cfg.prop, lambda m: setattr(m.cfg, "groups", 3), cfg=Config)
case("object", lambda s: s.cfg.prop, rename, cfg=Config)
case(
    "object",
    lambda s: s.cfg.groups,
    lambda m: setattr(m.cfg, "groups", 3),
    cfg=lambda: argparse.Namespace(groups=2),
)
case("object", lambda s: s.cfg.groups, lambda m: m.cfg.update(groups=3), cfg=lambda: Easy(groups=2))
case("object", lambda s: s.cfg.groups, lambda m: m.cfg.values.update(groups=3), cfg=Looks)
case("object", lambda s: s.cfg.groups, lambda m: setattr(m.cfg, "groups", 3), cfg=WithSlots)
case("object", lambda s: s.cfg.groups, lambda m: setattr(m.cfg, "groups", 3), cfg=Data)
case("object", lambda s: s.cfg.parts[0], lambda m: m.cfg.parts.__setitem__(0, 3), cfg=Data)
case("object", lambda s: s.cfg["a"], lambda m: m.cfg.update(a=3), cfg=lambda: OrderedDict(a=2))
case("object", lambda s: s.cfg["a"], lambda m: m.cfg.update(a=3), cfg=lambda: defaultdict(int, a=2))
case("object", lambda s: 2 if 5 in s.cfg else 3, lambda m: m.cfg.clear(), cfg=lambda: {5, 6})
case("object", lambda s: s.cfg[0], lambda m: m.cfg.reverse(), cfg=lambda: deque([2, 3]))
case("object", lambda s: s.cfg[300], lambda m: m.cfg.__setitem__(300, 3), cfg=lambda: [2] * 600)
case(
    "object",
    lambda s: 2 if s.cfg is Kind.TWO else 3,
    lambda m: setattr(m, "cfg", Kind.THREE),
    cfg=lambda: Kind.TWO,
)
case("object", lambda s: s.cfg.a, lambda m: setattr(m, "cfg", Point(3, 2)), cfg=lambda: Point(2, 3))
case("object", lambda s: GLOBAL_CONFIG.groups, set_in(GLOBAL_CONFIG, "groups"))
case("object", lambda s: DATA.parts[0], lambda m: DATA.parts.__setitem__(0, 3))
case("object", lambda s: Config.GROUPS, set_in(Config, "GROUPS"))
case("object", lambda s: Child.table["groups"], put_in(Config.table, "groups"))
case("object", lambda s: Child.deep.groups, set_in(Config.deep, "groups"))
case("object", lambda s: s.cfg.static(), set_in(Config, "static", staticmethod(lambda: 3)), cfg=Config)
case("object", lambda s: Child.clsm(), set_in(Config, "OTHER"))
case("object", lambda s: len(s.cfg), set_in(Fresh, "__len__", lambda s: 3), cfg=Fresh)
case("object", lambda s: HOLDER.groups, set_in(Described, "__get__", lambda *a: 3))
case("object", lambda s: getattr(s.cfg, "new", 2), lambda m: setattr(m.cfg, "new", 3), cfg=Config)
case("object", lambda s: getattr(s.cfg, "gro" + "ups"), lambda m: setattr(m.cfg, "groups", 3), cfg=Config)
case("object", lambda s: s.array[0], lambda m: m.array.__setitem__(0, 3), array=lambda: np.array([2, 3]))
case(
    "object", lambda s: int(s.scalar), lambda m: setattr(m, "scalar", np.int64(3)), scalar=lambda: np.int64(2)
)
case(
    "object",
    lambda s: operator.attrgetter("cfg.groups")(s),
    lambda m: setattr(m.cfg, "groups", 3),
    cfg=Config,
)
case("object", lambda s: s.get(s), lambda m: setattr(m, "n", 3), n=2, get=lambda: operator.attrgetter("n"))
case("object", lambda s: vars(s)["n"], lambda m: setattr(m, "n", 3), n=2)
case("object", lambda s: s.__dict__["n"], lambda m: setattr(m, "n", 3), n=2)
case(
    "object",
    lambda s: s.view[0],
    lambda m: setattr(m, "view", memoryview(b"\3")),
    view=lambda: memoryview(b"\2"),
)
