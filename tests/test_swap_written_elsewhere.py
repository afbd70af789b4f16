# SPDX-License-Identifier: MIT
"""Another thread writes to what a forward reads, while that forward is captured: its writes stay, none is believed."""

from __future__ import annotations

import copy
import itertools
import sys
from collections import Counter, UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import opswap
from opswap.swap.capture.follow import Follower
from opswap.swap.capture.tracer import Tracer
from spellings import by_size
from swapping import images
from threads import elsewhere

pytestmark = pytest.mark.once

ME = sys.modules[__name__]


@dataclass
class Config:
    groups: int = 2
    steps: int = 0
    sizes: list[int] = field(default_factory=lambda: [2])


class Slots:
    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups = 2


class OfClass:
    groups = 2
    sizes = [2]  # noqa: RUF012


class Counting:
    """A look-up that writes to the object's own dictionary."""

    def __init__(self) -> None:
        self.groups = 2

    def __getattribute__(self, name: str) -> Any:
        attributes = super().__getattribute__("__dict__")
        if name == "groups":
            attributes["asked"] = attributes.get("asked", 0) + 1
        return super().__getattribute__(name)


COUNTING = Counting()


def noted() -> int:
    return noted.groups


class State:
    """Everything that forwards read here and other threads write."""

    def __init__(self) -> None:
        self.list, self.dict, self.set, self.deque = [2], {"a": 2}, {2}, deque([2])
        self.config, self.slots = Config(), Slots()
        self.user, self.counter = UserDict(a=2), Counter(a=2)
        self.nested = {"a": [2]}


STATE = State()
GROUPS, LIST, DICT = 2, [2], {"a": 2}


def counted() -> tuple[Callable[[], int], Callable[[int], None]]:
    groups = 2

    def read() -> int:
        return groups

    def write(value: int) -> None:
        nonlocal groups
        groups = value

    return read, write


READ, WRITE = counted()


@pytest.fixture(autouse=True)
def outside_as_it_was() -> Iterator[None]:
    def reset() -> None:
        STATE.__init__()
        ME.GROUPS, LIST[:] = 2, [2]
        DICT.clear()
        DICT["a"] = 2
        WRITE(2)
        OfClass.groups, OfClass.sizes[:] = 2, [2]
        noted.groups = 2

    reset()
    yield
    reset()


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch, third_thread: None) -> Callable[..., None]:
    """Have a step run in another thread in the middle of the next traces, as often as `times` says."""

    def add(step: Callable[[], Any], times: int = 1) -> None:
        stock, left = Tracer.proxy, [times]

        def proxy(self: Tracer, node: fx.Node) -> fx.Proxy:
            if node.op == "call_method" and node.target == "view" and left[0]:
                left[0] -= 1
                elsewhere(step)
            return stock(self, node)

        monkeypatch.setattr(Tracer, "proxy", proxy)

    return add


def model_of(body: Callable[[Any, Tensor], Tensor], groups: Callable[[Any], int]) -> nn.Module:
    """groups(self) is asked before the shuffle, in which another thread writes, and behind it."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.config, self.slots, self.state = nn.Conv2d(12, 12, 1), Config(), Slots(), STATE

        def forward(self, x: Tensor) -> Tensor:
            before = groups(self)
            return body(self, by_size(self.conv(x)) * before) * groups(self)

    return Made()


def plain(s: Any, x: Tensor) -> Tensor:
    return x


def with_a_list_of_its_own(s: Any, x: Tensor) -> Tensor:
    found = []
    for _ in range(2):
        found.append(x)
    return found[0]


def with_a_dict_of_its_own(s: Any, x: Tensor) -> Tensor:
    found = {}
    found["a"] = x
    return found["a"]


def with_a_sum(s: Any, x: Tensor) -> Tensor:
    x = x * 1
    x += 1
    return x


BODIES = (plain, with_a_list_of_its_own, with_a_dict_of_its_own, with_a_sum)


# name: what the forward asks, what another thread writes, and what must have stayed of it
KINDS: dict[str, tuple[Callable[[Any], int], Callable[[], Any], Callable[[], bool]]] = {
    "a list": (lambda s: LIST[-1], lambda: LIST.append(3), lambda: LIST == [2, 3]),
    "a list, elsewhere": (lambda s: LIST[0], lambda: LIST.append(3), lambda: LIST == [2, 3]),
    "a list, shorter": (lambda s: len(LIST), lambda: LIST.pop(), lambda: LIST == []),
    "a dict": (lambda s: DICT["a"], lambda: DICT.update(a=3), lambda: DICT == {"a": 3}),
    "a dict, another key": (lambda s: DICT["a"], lambda: DICT.update(b=3), lambda: DICT == {"a": 2, "b": 3}),
    "a dict, by get": (lambda s: DICT.get("a"), lambda: DICT.update(a=3), lambda: DICT == {"a": 3}),
    "a dict, in a loop": (lambda s: sum(DICT.values()), lambda: DICT.clear(), lambda: DICT == {}),
    "a set": (lambda s: len(STATE.set), lambda: STATE.set.add(3), lambda: STATE.set == {2, 3}),
    "a deque": (lambda s: STATE.deque[0], lambda: STATE.deque.appendleft(3), lambda: list(STATE.deque) == [3, 2]),
    "a user's dict": (lambda s: STATE.user["a"], lambda: STATE.user.update(a=3), lambda: STATE.user["a"] == 3),
    "a counter": (lambda s: STATE.counter["a"], lambda: STATE.counter.update("a"), lambda: STATE.counter["a"] == 3),
    "a list in a dict": (
        lambda s: STATE.nested["a"][0],
        lambda: STATE.nested["a"].insert(0, 3),
        lambda: STATE.nested["a"] == [3, 2],
    ),
    "an attribute": (
        lambda s: STATE.config.groups,
        lambda: setattr(STATE.config, "groups", 3),
        lambda: STATE.config.groups == 3,
    ),
    "an attribute that is not read": (
        lambda s: STATE.config.groups,
        lambda: setattr(STATE.config, "steps", 3),
        lambda: STATE.config.steps == 3,
    ),
    "an attribute that is new": (
        lambda s: STATE.config.groups,
        lambda: setattr(STATE.config, "more", 3),
        lambda: STATE.config.more == 3,
    ),
    "a list in an object": (
        lambda s: STATE.config.sizes[-1],
        lambda: STATE.config.sizes.append(3),
        lambda: STATE.config.sizes == [2, 3],
    ),
    "an object of the module": (
        lambda s: s.state.config.groups,
        lambda: setattr(STATE.config, "groups", 3),
        lambda: STATE.config.groups == 3,
    ),
    "a slot": (
        lambda s: STATE.slots.groups,
        lambda: setattr(STATE.slots, "groups", 3),
        lambda: STATE.slots.groups == 3,
    ),
    "a global": (lambda s: GROUPS, lambda: setattr(ME, "GROUPS", 3), lambda: GROUPS == 3),
    "a closure": (lambda s: READ(), lambda: WRITE(3), lambda: READ() == 3),
    "a class": (lambda s: OfClass.groups, lambda: setattr(OfClass, "groups", 3), lambda: OfClass.groups == 3),
    "a list of a class": (
        lambda s: OfClass.sizes[-1],
        lambda: OfClass.sizes.append(3),
        lambda: OfClass.sizes == [2, 3],
    ),
    "a function": (lambda s: noted(), lambda: setattr(noted, "groups", 3), lambda: noted.groups == 3),
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_what_another_thread_wrote_stays(
    kind: str, body: Callable[[Any, Tensor], Tensor], during: Any
) -> None:
    """It is captured in another trace, with the new value."""
    groups, write, stayed = KINDS[kind]
    model, x = model_of(body, groups), images()
    stock = copy.deepcopy(model)
    stock.state = model.state  # which the other thread writes to
    during(write)
    opswap.swap(model, exact=True)
    assert stayed()
    assert opswap.report(model).swapped or body is with_a_sum, str(opswap.report(model))
    for _ in range(2):
        assert torch.equal(model(x), stock(x))
        outside = copy.deepcopy(vars(STATE))
        STATE.__init__()
        LIST[:], ME.GROUPS, OfClass.groups, noted.groups = [2], 2, 2, 2
        DICT.update(a=2)
        WRITE(2)
        assert torch.equal(model(x), stock(x))
        vars(STATE).update(outside)


VALUES = itertools.count(3)
# As long as the traces go on.
ALWAYS: dict[str, Callable[[], Any]] = {
    "a dict": lambda: DICT.update(a=next(VALUES)),
    "a global": lambda: setattr(ME, "GROUPS", next(VALUES)),
    "a closure": lambda: WRITE(next(VALUES)),
    "a list": lambda: LIST.append(next(VALUES)),
    "an attribute": lambda: setattr(STATE.config, "groups", next(VALUES)),
    "a class": lambda: setattr(OfClass, "groups", next(VALUES)),
}


@pytest.mark.parametrize("kind", ALWAYS)
def test_a_thread_that_writes_in_every_trace(kind: str, during: Any) -> None:
    """The forward stays as it is, and the report says why; nothing is put back."""
    during(ALWAYS[kind], 10**6)
    model, x = model_of(plain, KINDS[kind][0]), images()
    stock, before = copy.deepcopy(model), next(VALUES)
    report = opswap.report(opswap.swap(model, exact=True))
    assert not report.swapped and "another thread writes to" in report.kept[0].reason, str(report)
    last = next(VALUES) - 1
    assert last > before + 1 and KINDS[kind][0](model) == last
    assert torch.equal(model(x), stock(x))


FLAG = False


class Flagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = by_size(self.conv(x))
        return y * 2 if FLAG else y


def test_a_branch_is_not_guarded_by_what_was_before(during: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag is False when the trace begins, and True when the forward asks for it."""
    monkeypatch.setattr(ME, "FLAG", False)
    during(lambda: setattr(ME, "FLAG", True))
    stock = Flagged()
    model, x = opswap.swap(copy.deepcopy(stock), exact=True, strict=True), images()
    for flag in (True, False, True):
        monkeypatch.setattr(ME, "FLAG", flag)
        assert torch.equal(model(x), stock(x)), flag


@pytest.mark.usefixtures("third_thread")
def test_a_write_between_reading_and_remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the trace has read is not what the rewritten forward would compare with."""
    stock_outside, done = Follower.outside, []

    def outside(self: Follower) -> Any:
        if not done:
            done.append(True)
            elsewhere(lambda: LIST.__setitem__(0, 3))
        return stock_outside(self)

    monkeypatch.setattr(Follower, "outside", outside)
    stock = model_of(plain, lambda s: LIST[0])
    model, x = opswap.swap(copy.deepcopy(stock), exact=True, strict=True), images()
    assert LIST == [3]
    for value in (3, 2):
        LIST[0] = value
        assert torch.equal(model(x), stock(x)), value


# --- what the forward itself writes is found and taken back, whatever else happens ---


def by_method(s: Any, x: Tensor) -> Tensor:
    LIST.append(x)
    return x


def by_subscript(s: Any, x: Tensor) -> Tensor:
    DICT["z"] = x
    return x


def by_a_variable(s: Any, x: Tensor) -> Tensor:
    table = DICT
    table["z"] = x
    return x


def in_place(s: Any, x: Tensor) -> Tensor:
    log = LIST
    log += [x]
    return x


def by_function(s: Any, x: Tensor) -> Tensor:
    list.append(LIST, x)
    return x


def by_map(s: Any, x: Tensor) -> Tensor:
    list(map(LIST.append, [x]))
    return x


def by_partial(s: Any, x: Tensor) -> Tensor:
    partial(LIST.append, x)()
    return x


def by_name(s: Any, x: Tensor) -> Tensor:
    getattr(LIST, "append")(x)  # noqa: B009
    return x


def by_deletion(s: Any, x: Tensor) -> Tensor:
    del DICT["a"]
    return x


def by_slice(s: Any, x: Tensor) -> Tensor:
    LIST[:] = [x, 2]
    return x


def by_default(s: Any, x: Tensor) -> Tensor:
    DICT.setdefault("z", x)
    return x


def of_a_users_dict(s: Any, x: Tensor) -> Tensor:
    STATE.user.update(z=x)
    return x


def of_an_attribute(s: Any, x: Tensor) -> Tensor:
    STATE.config.groups += 1
    return x


def of_a_slot(s: Any, x: Tensor) -> Tensor:
    STATE.slots.groups = 5
    return x


def of_a_closure(s: Any, x: Tensor) -> Tensor:
    WRITE(5)
    return x


def of_a_class(s: Any, x: Tensor) -> Tensor:
    OfClass.groups = 5
    return x


def in_a_list_of_an_object(s: Any, x: Tensor) -> Tensor:
    STATE.config.sizes.append(x)
    return x


def of_an_object_s_dict(s: Any, x: Tensor) -> Tensor:
    vars(STATE.config)["groups"] = 5
    return x


def of_a_variable_for_it(s: Any, x: Tensor) -> Tensor:
    attributes = STATE.config.__dict__
    attributes["extra"] = 5
    return x


def of_the_dict_by_method(s: Any, x: Tensor) -> Tensor:
    STATE.config.__dict__.update(extra=5)
    return x


def of_the_dict_by_deletion(s: Any, x: Tensor) -> Tensor:
    attributes = vars(STATE.config)
    del attributes["steps"]
    return x


def by_a_look_up(s: Any, x: Tensor) -> Tensor:
    return x + COUNTING.groups


OWN = (
    by_method, by_subscript, by_a_variable, in_place, by_function, by_map, by_partial, by_name, by_deletion, by_slice,
    by_default, of_a_users_dict, of_an_attribute, of_a_slot, of_a_closure, of_a_class, in_a_list_of_an_object,
    of_an_object_s_dict, of_a_variable_for_it, of_the_dict_by_method, of_the_dict_by_deletion, by_a_look_up,
)  # fmt: skip


def held() -> tuple[Any, ...]:
    return copy.deepcopy(
        (
            vars(STATE) | {"slots": STATE.slots.groups},
            LIST,
            DICT,
            READ(),
            OfClass.groups,
            GROUPS,
            vars(COUNTING),
        )
    )


@pytest.mark.usefixtures("third_thread")
@pytest.mark.parametrize("body", OWN, ids=lambda b: b.__name__)
def test_what_the_forward_writes_is_taken_back(body: Callable[[Any, Tensor], Tensor]) -> None:
    model, before = model_of(body, lambda s: 2), held()
    report = opswap.scan(model, exact=True)
    assert held() == before
    assert not report.swapped, str(report)


@pytest.mark.parametrize("body", [by_method, by_function, of_a_closure, of_a_class, by_default])
def test_each_is_left_its_own(body: Callable[[Any, Tensor], Tensor], during: Any) -> None:
    """The forward writes to one thing, another thread to a second one."""
    during(lambda: STATE.deque.append(7))
    model = model_of(body, lambda s: STATE.deque[0])
    assert not opswap.scan(model, exact=True).swapped
    assert list(STATE.deque) == [2, 7]
    left = LIST, STATE.config.groups, READ(), DICT
    assert left == ([2], 2, 2, {"a": 2})
