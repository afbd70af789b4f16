# SPDX-License-Identifier: MIT
"""Forwards that take values from outside of their arguments: hostile ones, which a swap refuses or watches.

`Case.change` is what happens between two calls; it is done for the stock model and for the swapped one alike.
"""

from __future__ import annotations

import contextvars
import datetime
import gc
import itertools
import operator
import os
import random
import secrets
import sys
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spellings import by_size

__all__ = ["CASES", "Case", "Net", "case"]


class Net(nn.Module):
    """conv -> what `body` makes of the net and the tensor; what the body returns as a number is groups of a shuffle."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        for name, value in attributes.items():
            setattr(self, name, value)


def net(body: Callable[[Any], Any], **attributes: Any) -> Callable[[], nn.Module]:
    """A class whose forward shuffles by as many groups as the body says."""

    class Made(Net):
        def forward(self, x: Tensor) -> Tensor:
            return by_size(self.conv(x), groups(self))

        def groups(self) -> Any:
            raise NotImplementedError

    def forward(self: Any, x: Tensor) -> Tensor:
        return by_size(self.conv(x), body(self))

    Made.forward = forward
    return lambda: Made(**{k: v() if callable(v) else v for k, v in attributes.items()})


def groups(_: Any) -> int:
    return 2


@dataclass
class Case:
    """A model, what changes between two calls of it, and whether a swap may still find the shuffle."""

    name: str
    make: Callable[[], nn.Module]
    change: Callable[[nn.Module], None] | None = None


CASES: dict[str, list[Case]] = {}


def case(kind: str, body: Callable[[Any], Any], change: Any = None, **attributes: Any) -> None:
    name = f"{kind} {len(CASES.setdefault(kind, []))} {','.join(body.__code__.co_names[:3])}"
    CASES[kind].append(Case(name, net(body, **attributes), change))


def whole(kind: str, make: Callable[[], nn.Module], change: Any = None) -> None:
    name = f"{kind} {len(CASES.setdefault(kind, []))} {make.__name__}"
    CASES[kind].append(Case(name, make, change))


# --- random sources ---

RANDOM = random.Random(3)
GENERATOR = np.random.default_rng(3)
TWO = (2, 3)
from random import choice as python_choice  # noqa: E402
from random import random as python_random  # noqa: E402

from numpy.random import rand as numpy_rand  # noqa: E402

case("random", lambda s: 2 if np.random.rand() < 0.5 else 3)
case("random", lambda s: 2 if s.rng.random() < 0.5 else 3, rng=lambda: np.random.default_rng(1))
case("random", lambda s: 2 if s.rng.random() < 0.5 else 3, rng=lambda: random.Random(1))
case("random", lambda s: 2 if RANDOM.random() < 0.5 else 3)
case("random", lambda s: int(GENERATOR.integers(2, 4)))
case("random", lambda s: 2 if numpy_rand() < 0.5 else 3)
case("random", lambda s: python_choice((2, 3)))
case("random", lambda s: 2 if python_random() < 0.5 else 3)
case("random", lambda s: 2 + secrets.randbelow(2))
case("random", lambda s: 2 + uuid.uuid4().int % 2)
case("random", lambda s: 2 + int(random.SystemRandom().random() * 2))
case("random", lambda s: 2 + os.urandom(1)[0] % 2)
case("random", lambda s: 2 if bool(torch.rand(1) < 0.5) else 3)
case("random", lambda s: 2 + int(torch.randint(2, (1,))))
case("random", lambda s: 2 + torch.rand(1, generator=s.g).item() // 0.5, g=lambda: torch.Generator())
case("random", lambda s: s.pick((2, 3)), pick=lambda: RANDOM.choice)
case("random", lambda s: min((2, 3), key=lambda _: RANDOM.random()))
case("random", lambda s: min((2, 3), key=s.key), key=lambda: partial(RANDOM.gauss, 0))
case("random", lambda s: sorted([2, 3], key=RANDOM.random.__class__ and (lambda _: np.random.rand()))[0])
case("random", lambda s: 2 + s.state.randint(0, 2), state=lambda: np.random.RandomState(1))


def imports_inside(s: Any) -> int:
    import random as r

    return 2 if r.random() < 0.5 else 3


def imports_from_inside(s: Any) -> int:
    from numpy import random as r

    return 2 if r.rand() < 0.5 else 3


case("random", imports_inside)
case("random", imports_from_inside)

# --- clocks, environment, files, the interpreter ---

VARIABLE = contextvars.ContextVar("VARIABLE", default=2)
LOCAL = threading.local()
LOCAL.groups = 2
REFERENCE = weakref.ref(RANDOM)
CLOCK = time.monotonic_ns
os.environ["OPSWAP_TEST_GROUPS"] = "2"


def _environment(_: nn.Module) -> None:
    os.environ["OPSWAP_TEST_GROUPS"] = "3"


def sets_variable(_: nn.Module) -> None:
    VARIABLE.set(3)


def sets_local(_: nn.Module) -> None:
    LOCAL.groups = 3


case("clock", lambda s: 2 + time.time_ns() // 1000 % 2)
case("clock", lambda s: 2 + CLOCK() // 1000 % 2)
case("clock", lambda s: 2 + s.clock() // 1000 % 2, clock=lambda: time.perf_counter_ns)
case("clock", lambda s: 2 + datetime.datetime.now().microsecond % 2)
case("state", lambda s: int(os.environ["OPSWAP_TEST_GROUPS"]), _environment)
case("state", lambda s: int(os.environ.get("OPSWAP_TEST_GROUPS", 3)), _environment)
case("state", lambda s: int(os.getenv("OPSWAP_TEST_GROUPS")), _environment)
case("clock", lambda s: 2 if len(open(os.devnull).read()) else 3)  # noqa: SIM115
case("state", lambda s: VARIABLE.get(), sets_variable)
case("state", lambda s: LOCAL.groups, sets_local)
case("clock", lambda s: 2 + id(object()) // 16 % 2)
case("clock", lambda s: 2 + hash(s) // 16 % 2)
case("clock", lambda s: 2 + object().__hash__() // 16 % 2)
case("clock", lambda s: 2 + int(np.empty(1)[0] > 0))
case("clock", lambda s: 2 + len(np.array2string(np.ones(2))) % 2)
case("clock", lambda s: 2 + gc.get_count()[0] % 2)
case("clock", lambda s: 2 + len(sys._getframe().f_back.f_code.co_name) % 2)
case("clock", lambda s: 2 + threading.active_count() % 2)
case("clock", lambda s: 2 + (REFERENCE() is None))
case("clock", lambda s: 2 + os.getpid() % 2)
case("clock", lambda s: 2 + len(globals()) % 2)
case("state", lambda s: sys.opswap_groups, lambda m: setattr(sys, "opswap_groups", 3))
sys.opswap_groups = 2

# --- iterators, counters and caches ---

COUNT = itertools.count()
CYCLE = itertools.cycle((2, 3))
QUEUE = deque([2, 3] * 50)
STACK = [2, 3] * 50


def generator() -> Any:
    while True:
        yield 2
        yield 3


GENERATES = generator()
CALLS = [0]
CALLED = {"n": 0}


def counting(s: Any) -> int:
    CALLS[0] += 1
    return 2 + CALLS[0] % 2


def counting_in_a_dict(s: Any) -> int:
    CALLED["n"] += 1
    return 2 + CALLED["n"] % 2


def counting_attribute(s: Any) -> int:
    counting_attribute.calls += 1
    return 2 + counting_attribute.calls % 2


counting_attribute.calls = 0


def counting_default(s: Any, known: list[int] = []) -> int:  # noqa: B006
    known.append(1)
    return 2 + len(known) % 2


def closure() -> Callable[[Any], int]:
    n = 0

    def count(s: Any) -> int:
        nonlocal n
        n += 1
        return 2 + n % 2

    return count


NUMBER = 0


def counting_global(s: Any) -> int:
    global NUMBER
    NUMBER += 1
    return 2 + NUMBER % 2


class Counter:
    """Counts in an attribute, a slot or its class."""

    n = 0

    def count(self) -> int:
        self.n += 1
        return 2 + self.n % 2

    @classmethod
    def count_all(cls) -> int:
        cls.n += 1
        return 2 + cls.n % 2

    def __call__(self) -> int:
        return self.count()


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0

    def count(self) -> int:
        self.n += 1
        return 2 + self.n % 2


COUNTER = Counter()
LIMIT = [2]


@lru_cache
def cached(n: int) -> int:
    return LIMIT[0]


class Lazy:
    @property
    def groups(self) -> int:
        return 2 + next(COUNT) % 2


case("counter", lambda s: next(s.it), it=lambda: iter([2, 3] * 50))
case("counter", lambda s: 2 + next(COUNT) % 2)
case("counter", lambda s: next(CYCLE))
case("counter", lambda s: next(GENERATES))
case("counter", lambda s: next(s.it), it=generator)
case("counter", lambda s: [v for v, _ in zip(GENERATES, (1,))].pop())  # noqa: B905
case("counter", lambda s: QUEUE.popleft())
case("counter", lambda s: STACK.pop())
case("counter", lambda s: s.stack.pop(), stack=lambda: [2, 3] * 50)
case("counter", counting)
case("counter", counting_in_a_dict)
case("counter", counting_attribute)
case("counter", counting_default)
case("counter", closure())
case("counter", counting_global)
case("counter", lambda s: COUNTER.count())
case("counter", lambda s: Counter.count_all())
case("counter", lambda s: COUNTER())
case("counter", lambda s: s.counter.count(), counter=Slotted)
case("counter", lambda s: Lazy().groups)
case("counter", lambda s: cached(2), lambda m: (LIMIT.__setitem__(0, 3), cached.cache_clear()))
case("counter", lambda s: s.seen.setdefault(len(s.seen), 2 + len(s.seen) % 2), seen=dict)
case("counter", lambda s: 2 + (operator.setitem(CALLS, 0, CALLS[0] + 1) or CALLS[0]) % 2)
case("counter", lambda s: 2 + (setattr(COUNTER, "n", COUNTER.n + 1) or COUNTER.n) % 2)
