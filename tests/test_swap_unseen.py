# SPDX-License-Identifier: MIT
"""Modules that a forward calls, and their hooks, write to what the forward reads, which a trace does not see."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings
import weakref
from collections import Counter, UserDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import opswap
from swapping import images, same_on_every_call

STATE = SimpleNamespace(groups=2)
COUNT = 0
SEEN: list[int] = []


def shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.size()
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Meter:
    """An object that a child and its parent share."""

    def __init__(self) -> None:
        self.groups = 2
        self.values: list[int] = []

    def add(self) -> None:
        self.values.append(len(self.values))

    def change(self) -> None:
        self.groups = 6 - self.groups


class Child(nn.Module):
    """Returns its input, and calls `effect` with itself."""

    def __init__(self, effect: Callable[[Any], None]) -> None:
        super().__init__()
        self.effect, self.groups, self.calls = effect, 2, 0
        self.log: list[int] = []
        self.meter = Meter()
        self.users, self.counter, self.defaults = UserDict(), Counter(), defaultdict(int)
        self.register_buffer("offset", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.effect(self)
        return x + 0


class Parent(nn.Module):
    def __init__(self, effect: Callable[[Any], None], value: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.child, self.value = Child(effect), value
        self.meter, self.act, self.bank = self.child.meter, nn.ReLU(), Bank()
        self.child.parent = weakref.ref(self)

    def forward(self, x: Tensor) -> Any:
        y = self.child(x)
        return shuffle(self.act(y), 2), self.value(self, y)


def toggle(child: Child) -> None:
    child.groups = 6 - child.groups


def set_text(child: Child) -> None:
    setattr(child, "groups", 6 - child.groups)  # noqa: B010


def set_any(child: Child) -> None:
    for name in ("groups",):
        setattr(child, name, 6 - child.groups)


def in_namespace(child: Child) -> None:
    vars(child)["groups"] = 6 - child.groups


def in_module_of_state(child: Child) -> None:
    STATE.groups = 6 - STATE.groups


def in_global(child: Child) -> None:
    global COUNT
    COUNT += 1


def rebind(child: Child) -> None:
    child.offset = child.offset + 1


def register(child: Child) -> None:
    child.register_buffer("offset", child.offset + 1)


def count_alone(child: Child) -> None:
    child.calls += 1


@torch.no_grad()
def without_gradient(child: Child) -> None:
    child.groups = 6 - child.groups


@torch.inference_mode()
def in_inference(child: Child) -> None:
    child.log.append(1)


@contextlib.contextmanager
def changing(child: Child) -> Iterator[None]:
    child.groups = 6 - child.groups
    yield


def in_context(child: Child) -> None:
    with changing(child):
        pass


@cache
def _seen(number: int) -> None:
    SEEN.append(number)


class Registered:
    """Making one is what counts."""

    def __init__(self, number: int) -> None:
        self.number = number
        SEEN.append(number)


@dataclass
class Noted:
    number: int

    def __post_init__(self) -> None:
        STATE.groups = 6 - STATE.groups


def by_import(child: Child) -> None:
    from test_swap_unseen import STATE as state

    state.groups = 6 - state.groups


def by_method_of_the_parent(child: Child) -> None:
    child.parent().bank.add(child)


class Bank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def add(self, child: Child) -> None:
        self.count += 1


CHANGES: dict[str, tuple[Callable[[Any], None], Callable[[Any, Tensor], Any]]] = {
    "attribute": (toggle, lambda m, y: shuffle(y, m.child.groups)),
    "getattr": (toggle, lambda m, y: shuffle(y, getattr(m.child, "groups"))),  # noqa: B009
    "setattr": (set_text, lambda m, y: shuffle(y, m.child.groups)),
    "setattr of any name": (set_any, lambda m, y: shuffle(y, m.child.groups)),
    "namespace": (in_namespace, lambda m, y: shuffle(y, m.child.groups)),
    "object": (lambda c: c.meter.change(), lambda m, y: shuffle(y, m.meter.groups)),
    "list of an object": (lambda c: c.meter.add(), lambda m, y: y * len(m.meter.values)),
    "list": (lambda c: c.log.append(1), lambda m, y: y * len(m.child.log)),
    "global object": (in_module_of_state, lambda m, y: shuffle(y, STATE.groups)),
    "global": (in_global, lambda m, y: y * COUNT),
    "global list": (lambda c: SEEN.append(1), lambda m, y: y * len(SEEN)),
    "buffer": (rebind, lambda m, y: y + m.child.offset),
    "registered buffer": (register, lambda m, y: y + m.child.offset),
    "no_grad": (without_gradient, lambda m, y: shuffle(y, m.child.groups)),
    "inference_mode": (in_inference, lambda m, y: y * len(m.child.log)),
    "context": (in_context, lambda m, y: shuffle(y, m.child.groups)),
    "lru_cache": (lambda c: _seen(len(c.log)), lambda m, y: y * len(SEEN)),
    "constructor": (lambda c: Registered(1) and None, lambda m, y: y * len(SEEN)),
    "post_init": (lambda c: Noted(1) and None, lambda m, y: shuffle(y, STATE.groups)),
    "import": (by_import, lambda m, y: shuffle(y, STATE.groups)),
    "UserDict": (lambda c: c.users.update({len(c.users): 1}), lambda m, y: y * len(m.child.users)),
    "Counter": (lambda c: c.counter.subtract("a"), lambda m, y: y * m.child.counter["a"]),
    "defaultdict": (lambda c: c.defaults[len(c.defaults)], lambda m, y: y * len(m.child.defaults)),
    "module of the parent": (by_method_of_the_parent, lambda m, y: y * m.bank.count),
}


def reset() -> None:
    global COUNT
    COUNT, STATE.groups = 0, 2
    SEEN.clear()
    _seen.cache_clear()


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_child_writes_is_read_again(name: str) -> None:
    effect, value = CHANGES[name]
    reset()
    same_on_every_call(Parent(effect, value), opswap.swap(Parent(effect, value)), reset)


def test_a_variable_of_a_closure() -> None:
    def make() -> nn.Module:
        groups = 2

        def effect(child: Child) -> None:
            nonlocal groups
            groups = 6 - groups

        return Parent(effect, lambda m, y: shuffle(y, groups))

    same_on_every_call(make(), opswap.swap(make()))


def test_a_parameter_is_read_where_the_forward_reads_it() -> None:
    """Before and after a child puts another tensor in its place."""

    class Reading(Parent):
        def forward(self, x: Tensor) -> Tensor:
            before = self.child.offset
            return shuffle(self.child(x), 2) * (1 + before) + self.child.offset

    stock = Reading(rebind, lambda m, y: y)
    same_on_every_call(stock, opswap.swap(copy.deepcopy(stock)))


def test_a_child_changes_the_sequential_that_runs() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Conv2d(12, 12, 1), Child(lambda c: None), nn.BatchNorm2d(12), nn.ReLU())
        link = weakref.ref(model)
        model[1].effect = lambda c: link().__setitem__(3, nn.Tanh()) if c.training else None
        return model

    torch.manual_seed(0)
    stock = make()
    torch.manual_seed(0)
    same_on_every_call(stock, opswap.swap(make()))


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.seen, self.last = nn.Conv2d(12, 12, 3), {}, None

    def forward(self, x: Tensor) -> Any:
        y = shuffle(self.conv(x), 2)
        return (y, self.last, *self.seen.values())


def collects(model: Any) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        model.seen["conv"] = output

    return hook


def keeps(model: Any) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        model.last = output

    return hook


def keeps_before(model: Any) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any) -> None:
        (model.last,) = args

    return hook


HOOKS = {
    "collects": (collects, "register_forward_hook"),
    "keeps": (keeps, "register_forward_hook"),
    "keeps before": (keeps_before, "register_forward_pre_hook"),
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("when", ["before", "after", "after a call"])
def test_hooks_of_a_child(name: str, when: str) -> None:
    make, kind = HOOKS[name]
    stock = Hooked()
    model = copy.deepcopy(stock)
    getattr(stock.conv, kind)(make(stock))
    if when == "before":
        getattr(model.conv, kind)(make(model))
    opswap.swap(model)
    x = images()
    if when == "after a call":
        model(x)
    if when != "before":
        getattr(model.conv, kind)(make(model))
        assert "a hook or code of a module that forward calls may write to" in str(opswap.explain(model, x))
        model.last = None
        model.seen.clear()
    for _ in range(2):
        torch.testing.assert_close(model(x), stock(x))


def test_hooks_that_write_elsewhere() -> None:
    """They collect what the forward does not read: it stays rewritten, and so do its copies."""
    model = opswap.swap(Hooked())
    features: dict[str, Tensor] = {}

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        features["conv"] = output

    handle = model.conv.register_forward_hook(hook)
    for m in (model, copy.deepcopy(model)):
        opswap.reset_stats()
        m(images())
        assert "Hooked" not in opswap.stats()["original"] and features
    handle.remove()
    assert opswap.report(pickle.loads(pickle.dumps(model))).swapped


def test_children_that_write_what_nobody_reads() -> None:
    model = opswap.swap(Parent(count_alone, lambda m, y: shuffle(y, m.child.groups)))
    assert [s.rule for s in opswap.report(model).swapped if not s.path].count("channel_shuffle") == 2


class Shaped(nn.Module):
    """Writes attributes that are called as those of tensors, and a list and a dict of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = self.shape = None
        self.layers = nn.ModuleList([nn.Identity()])

    def forward(self, x: Tensor) -> Tensor:
        found = []
        known = {}
        self.shape = x.shape
        self.mean = vars(self)["shape"]
        for layer in self.layers:
            found.append(layer(x))
            known["last"] = found[-1]
        return known["last"] + 0


class AroundShaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Sequential(Shaped())

    def forward(self, x: Tensor) -> Tensor:
        y = self.child(x)
        return shuffle(y, 2) + y.mean() * y.shape[1]


def test_names_that_tensors_have() -> None:
    model = opswap.swap(AroundShaped())
    assert [s.rule for s in opswap.report(model).swapped] == ["channel_shuffle"]
    same_on_every_call(AroundShaped(), model)


class Below(nn.Module):
    """Has the convolution one level below, and calls what is in a long list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3)
        self.callbacks: list[Any] = [None] * 300

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x) + 0
        for callback in self.callbacks:
            if callback is not None:
                callback(y)
        return y


class Deep(Hooked):
    def __init__(self) -> None:
        super().__init__()
        self.conv = Below()


def keeps_later(model: Deep) -> None:
    model.conv.callbacks[150] = lambda y: setattr(model, "last", y)


def test_what_comes_later_is_noticed_at_the_end_of_a_call() -> None:
    """Of many values in one list not each is compared: one call may use what was read before, and says so."""
    model = opswap.swap(Deep())
    x = images()
    model(x)
    keeps_later(model)
    with pytest.warns(UserWarning, match=r"self\.last changed from None to .*used what forward read before"):
        model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            model.last = None
            assert model(x)[1] is model.last is not None
    model.conv.callbacks.clear()
    for copied in (False, True):
        model.last = None  # else it cannot be copied
        assert "while forward ran" in str(opswap.explain(copy.deepcopy(model) if copied else model, x))


def test_a_hook_of_all_modules() -> None:
    stock, model = Hooked(), Hooked()
    model.load_state_dict(stock.state_dict())
    opswap.swap(model)

    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            for m in (stock, model):
                m.last = args[0]

    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        same_on_every_call(stock, model)
    finally:
        handle.remove()


def test_a_lazy_layer() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.LazyConv2d(8, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, int]:
            return shuffle(self.conv(x), 2), self.conv.in_channels

    assert opswap.swap(Lazy())(images())[1] == 12


class Odd:
    """A hook whose attributes are other objects on every look-up."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Odd()

    def __call__(self, *args: Any) -> None:
        return None


class Gone:
    pass


def odd_hooks() -> dict[str, Callable[..., None]]:
    proxy = weakref.proxy(Gone())

    def of_a_proxy(*args: Any) -> None:
        with contextlib.suppress(ReferenceError):
            proxy.anything()

    def imports(*args: Any) -> None:
        with contextlib.suppress(ImportError):
            from .nothing import anything  # noqa: F401

    class Wrapped:
        def __call__(self, *args: Any) -> None:
            return None

        def loops(self) -> None:
            pass

    Wrapped.loops.__wrapped__ = Wrapped.loops
    mocked = mock.Mock(return_value=None)
    return {"proxy": of_a_proxy, "import": imports, "loop": Wrapped(), "mock": mocked, "look-up": Odd()}


@pytest.mark.parametrize("name", ["proxy", "import", "loop", "mock", "look-up"])
@pytest.mark.parametrize("before", [True, False])
def test_odd_hooks(name: str, before: bool) -> None:
    """The search neither raises nor runs their look-ups."""
    hook, stock = odd_hooks()[name], Hooked()
    model = copy.deepcopy(stock)
    if not before:
        opswap.swap(model)
    for m in (stock, model):
        m.conv.register_forward_hook(hook)
    if before:
        opswap.swap(model)
    same_on_every_call(stock, model)
    assert name != "mock" or not hook._mock_children


def test_a_child_that_trains_or_evaluates() -> None:
    """`net.eval()` in a child is not the builtin; what it sets is the mode."""

    def freezes(child: Child) -> None:
        child.meter.net.eval()

    def make() -> Parent:
        parent = Parent(freezes, lambda m, y: y)
        parent.child.meter.net = nn.Identity()
        return parent

    assert any(not s.path for s in opswap.report(opswap.swap(make())).swapped)

    class Moded(Parent):
        def forward(self, x: Tensor) -> Tensor:
            y = self.child(x)
            return shuffle(y, 2) * (2 if self.training else 1)

    def switches(child: Child) -> None:
        child.parent().train(False)

    stock, model = (Moded(switches, lambda m, y: y) for _ in range(2))
    opswap.swap(model)
    same_on_every_call(stock, model, lambda: [m.train() for m in (stock, model)] and None)


def test_as_errors_the_warning_does_not_lose_the_result() -> None:
    model = opswap.swap(Deep())
    keeps_later(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model(images())[0].shape[1] == 12
    opswap.swap(model)  # analyses it anew
    record = vars(model).get("_opswap_record")
    assert record is None or not record.moved


def test_records_of_older_versions() -> None:
    record = opswap.swap(Hooked())._opswap_record
    older = object.__new__(type(record))
    older.__setstate__({k: v for k, v in vars(record).items() if k != "moved"})
    assert older.moved == []
