# SPDX-License-Identifier: MIT
"""Forwards that ask a configuration whose class looks up attributes for itself, as those of transformers do."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import originals_of
from opswap.swap.runtime import purity
from spellings import by_size
from step import outcome
from swapping import images, same

log = logging.getLogger("opswap_test_look_ups")


class Layered:
    """Some attributes may not be asked for while there is a list of them."""

    def __getattribute__(self, key: str) -> Any:
        per_layer = super().__getattribute__("__dict__").get("_per_layer")
        if per_layer is not None and key in per_layer:
            if not super().__getattribute__("permissive"):
                raise ValueError(f"{key!r} is an attribute of a layer")
            log.warning("%s is read", key)
        return super().__getattribute__(key)

    @property
    def permissive(self) -> bool:
        return self.__dict__.get("permissive", False)


class Settings(Layered):
    """Attributes with second names."""

    names: ClassVar[dict[str, str]] = {"heads": "groups"}
    ratio = 2

    def __init__(self, groups: int = 2, **others: Any) -> None:
        self.groups = groups
        self.labels = {i: f"label {i}" for i in range(1000)}
        for name, value in others.items():
            setattr(self, name, value)

    def __getattribute__(self, key: str) -> Any:
        if key != "names" and key in super().__getattribute__("names"):
            key = super().__getattribute__("names")[key]
        return super().__getattribute__(key)

    @property
    def twice(self) -> int:
        return self.groups * self.ratio // 2


class Counting(Settings):
    """A look-up that writes."""

    def __getattribute__(self, key: str) -> Any:
        held = super().__getattribute__("__dict__")
        if key == "groups":
            held["asked"] = held.get("asked", 0) + 1
        return 2 + held.get("asked", 0) // 4 if key == "groups" else super().__getattribute__(key)


OTHER = Settings(3)


class Foreign(Settings):
    """A look-up that answers for another object."""

    def __getattribute__(self, key: str) -> Any:
        if key == "groups":
            return object.__getattribute__(OTHER, "group" + "s")
        return super().__getattribute__(key)


class Net(nn.Module):
    def __init__(self, settings: Any, read: Callable[[Any], int] = lambda c: c.groups) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.settings = settings
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.conv(x), self.read(self.settings))


def heads(c: Any) -> int:
    return c.heads


def twice(c: Any) -> int:
    return c.twice


def maybe(c: Any) -> int:
    return getattr(c, "extra", 2)


def groups(c: Any) -> int:
    return c.groups


READS = (groups, heads, twice, maybe)


def swapped_net(read: Callable[[Any], int], settings: Any = None) -> tuple[nn.Module, nn.Module]:
    """(stock, swapped) with settings of their own."""
    stock = Net(Settings() if settings is None else settings, read)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    return stock, model


def originals(model: nn.Module) -> int:
    return originals_of(lambda: model(images()))


@pytest.mark.parametrize("read", READS)
def test_it_is_replaced(read: Callable[[Any], int]) -> None:
    stock, model = swapped_net(read)
    assert any("shuffle" in s.rule for s in opswap.report(model).swapped)
    same(model, stock)
    assert not originals(model)
    for other in (copy.deepcopy(model), opswap.swap(stock, exact=True, inplace=False)):
        same(other, stock)
        assert not originals(other)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "an attribute": lambda m: setattr(m.settings, "groups", 3),
    "its type": lambda m: setattr(m.settings, "groups", 2.0),
    "a second name": lambda m: vars(m.settings).update(names={"heads": "ratio"}, ratio=3),
    "a layer's": lambda m: vars(m.settings).update(_per_layer=["groups", "extra"]),
    "permitted": lambda m: vars(m.settings).update(_per_layer=["groups"], permissive=True),
    "one more": lambda m: setattr(m.settings, "extra", 3),
    "the object": lambda m: setattr(m, "settings", Settings(3)),
    "an equal object": lambda m: setattr(m, "settings", Settings()),
    "a subclass": lambda m: setattr(m.settings, "__class__", type("More", (Settings,), {"groups": 3})),
    "another class": lambda m: setattr(m.settings, "__class__", Foreign),
}


def assert_alike(model: nn.Module, stock: nn.Module) -> None:
    x = images()
    ours, theirs = outcome(lambda: model(x)), outcome(lambda: stock(x))
    assert torch.equal(ours, theirs) if isinstance(theirs, Tensor) else ours == theirs


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read", READS)
def test_what_changes_is_noticed(read: Callable[[Any], int], change: str) -> None:
    stock, model = swapped_net(read)
    assert opswap.report(model).swapped and not originals(model)
    for m in (stock, model):
        CHANGES[change](m)
    assert_alike(model, stock)


CLASS_CHANGES: dict[str, tuple[type, str, Any]] = {
    "a constant": (Settings, "ratio", 3),
    "second names": (Settings, "names", {"heads": "ratio"}),
    "a property": (Settings, "twice", property(lambda s: 3)),
    "a property over an attribute": (Settings, "groups", property(lambda s: 3, lambda s, v: None)),
    "the look-up": (
        Settings,
        "__getattribute__",
        lambda s, k: 3 if k == "groups" else object.__getattribute__(s, k),
    ),
    "the look-up below": (Layered, "__getattribute__", lambda s, k: 3),
    "one more": (Layered, "extra", 3),
}


@pytest.mark.parametrize("change", CLASS_CHANGES)
@pytest.mark.parametrize("read", READS)
def test_what_changes_in_a_class_is_noticed(
    read: Callable[[Any], int], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, model = swapped_net(read)
    assert opswap.report(model).swapped and not originals(model)
    cls, name, value = CLASS_CHANGES[change]
    monkeypatch.setattr(cls, name, value, raising=False)
    assert_alike(model, stock)


@pytest.mark.parametrize("make", [Counting, Foreign])
def test_a_look_up_that_writes_or_asks_elsewhere(make: type[Settings]) -> None:
    stock = Net(make(), groups)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert not opswap.report(model).swapped
    assert vars(model.settings) == vars(stock.settings)
    for _ in range(6):
        assert_alike(model, stock)
        OTHER.groups = 5 - OTHER.groups


class Plain:
    def __init__(self) -> None:
        self.groups = self.heads = 2


GLOBAL, PLAIN = Settings(), Plain()
GLOBAL.extra = 2


class InOneMode(nn.Module):
    """Asks for one attribute while it trains, for another one else."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.plain = plain

    def forward(self, x: Tensor) -> Tensor:
        if self.plain:
            return by_size(self.conv(x), PLAIN.groups if self.training else PLAIN.heads)
        return by_size(self.conv(x), GLOBAL.groups if self.training else GLOBAL.extra)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["groups", "heads", "extra"])
@pytest.mark.parametrize("training", [False, True])
def test_what_one_mode_asks_for(
    plain: bool, name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = InOneMode(plain)
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
    monkeypatch.setattr(PLAIN if plain else GLOBAL, name, 3, raising=False)
    assert_alike(model.train(training), stock.train(training))


def test_settings_that_hold_a_module() -> None:
    settings = Settings(act=nn.ReLU())
    stock, model = swapped_net(groups, settings)
    for m in (stock, model):
        m.settings.groups = 3
        m.settings.act = nn.Identity()
    assert_alike(model, stock)


def test_a_log_that_is_read() -> None:
    stock = Net(Settings(), lambda c: 2 if log.level == logging.NOTSET else 3)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    log.setLevel(logging.ERROR)
    try:
        assert_alike(model, stock)
    finally:
        log.setLevel(logging.NOTSET)


def test_a_log_that_is_written_to(caplog: pytest.LogCaptureFixture) -> None:
    def read(c: Any) -> int:
        log.error("is asked")
        return c.groups

    stock = Net(Settings(), read)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert "is asked" not in caplog.text
    same(model, stock)
    assert caplog.text.count("is asked") > 1


def test_pickled() -> None:
    stock, model = swapped_net(heads)
    loaded = pickle.loads(pickle.dumps(model))
    assert not originals(loaded)
    for m in (stock, loaded):
        m.settings.groups = 3
    assert_alike(loaded, stock)


def test_the_reason_is_told() -> None:
    _, model = swapped_net(heads)
    model.settings.groups = 3
    assert "settings.heads changed from 2 to 3" in str(opswap.explain(model, images()))
    vars(model.settings)["_per_layer"] = ["groups"]
    table = opswap.explain
    with pytest.raises(ValueError, match="attribute of a layer"):
        table(model, images())


def test_compiled() -> None:
    stock, model = swapped_net(heads)
    compiled = torch.compile(model, backend="eager")
    x = images()
    for value in (2, 3):
        for m in (stock, model):
            m.settings.groups = value
        assert torch.equal(compiled(x), stock(x))


def test_what_is_known_of_files_does_not_grow_with_cells_of_a_notebook() -> None:
    text = "class Net(nn.Module):\n    def forward(self, x): return by_size(x, 2)"
    size = purity.owner.cache_info().maxsize
    assert size is not None
    for i in range(size + 8):
        purity.owner(f"<ipython-input-{i}>", "__main__")
    assert purity.owner.cache_info().currsize <= size
    scope = {"nn": nn, "by_size": by_size, "__name__": "__main__"}
    exec(compile(text, "<ipython-input-0>", "exec"), scope)
    assert opswap.report(opswap.swap(scope["Net"](), exact=True)).swapped
