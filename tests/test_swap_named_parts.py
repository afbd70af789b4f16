# SPDX-License-Identifier: MIT
"""Attributes that a forward looks up by names that a module holds, and writes of called modules to their parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from spellings import by_size
from swapping import images, same
from test_swap_flags_of_others import Base


class ByName(Base):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(12, 12, 1)
        self.name = "conv"

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.layer(x), 2)


class Computes(ByName):
    """The name is a property, of another name."""

    def __init__(self) -> None:
        self.chosen = "conv"
        super().__init__()

    @property
    def name(self) -> str:
        return "other" if self.training else self.chosen

    @name.setter
    def name(self, value: str) -> None:
        pass


class Hides(ByName):
    """A property that comes before the attribute of the instance."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["name"] = "first"

    def _name(self) -> str:
        return self.chosen

    def _set(self, value: str) -> None: ...

    chosen = "conv"
    name = property(_name, _set)


class OfTheClass(ByName):
    def __init__(self) -> None:
        super().__init__()
        del self.name

    name = "conv"


@pytest.mark.parametrize("kind", [ByName, Computes, Hides, OfTheClass])
def test_a_name_that_changes(kind: type[nn.Module]) -> None:
    stock = kind()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    for training in (True, False):
        same(model.train(training), stock.train(training), images(2, 12, 4, 8))
    for m in (stock, model):
        if kind in (Computes, Hides):
            m.chosen = "other"
        else:
            m.name = "other"
    for training in (True, False):
        same(model.train(training), stock.train(training), images(2, 12, 4, 8))


class Renames(Base):
    """Has another name for the time of the look-up."""

    def __init__(self) -> None:
        super().__init__()
        self.many, self.few, self.name = 3, 2, "few"

    def forward(self, x: Tensor) -> Tensor:
        self.name = "many"
        groups = getattr(self, self.name)
        self.name = "few"
        return by_size(self.conv(x), groups)


def test_a_name_that_the_forward_changes() -> None:
    stock = Renames()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    same(model, stock, images(2, 12, 4, 8))
    stock.many = model.many = 6
    same(model, stock, images(2, 12, 4, 8))


def test_only_the_named_attribute_is_followed() -> None:
    """A method that writes to attributes of any name is there, but not named."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.name = nn.BatchNorm2d(12), "bn"

        @property
        def norm(self) -> nn.Module:
            return getattr(self, self.name)

        def reset(self, name: str, value: Tensor) -> None:
            setattr(self, name, value)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x) * 2

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.groups = Block(), 2

        def forward(self, x: Tensor) -> Tensor:
            return by_size(self.block(x), self.groups)

    stock = Root()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert any(s.path == "" for s in opswap.report(model).swapped), str(opswap.report(model))
    same(model, stock, images(2, 12, 4, 8))
    model.block.name = stock.block.name = "reset"  # no module: stock raises
    for m in (stock, model):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            m(images(2, 12, 4, 8))


class Counter:
    """What a forward and a module that it calls share."""

    def __init__(self) -> None:
        self.groups, self.calls = 2, 0


class Counts(nn.Module):
    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self.counter = counter

    def forward(self, x: Tensor) -> Tensor:
        self.counter.calls += 1
        self.counter.groups = 3
        return x


class Writes(nn.Module):
    """Would write what the module that it calls writes, and reads one of the two."""

    off = False

    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter()
        self.child = Counts(self.counter)

    def forward(self, x: Tensor) -> Tensor:
        if self.off:
            self.counter.calls = 0
        return by_size(self.child(x), 2)


class WritesAndReads(Writes):
    def forward(self, x: Tensor) -> Tensor:
        if self.off:
            self.counter.groups = 2
        return by_size(self.child(x), self.counter.groups)


@pytest.mark.filterwarnings("error::UserWarning")
def test_what_a_forward_only_writes() -> None:
    model = opswap.swap(Writes(), exact=True)
    assert opswap.report(model).swapped, str(opswap.report(model))
    x = images(2, 12, 4, 8)
    for calls in (1, 2):  # without a warning that another module has written to it
        assert torch.equal(model(x), by_size(x, 2)) and model.counter.calls == calls
    assert not model._opswap_record.moved
    assert opswap.explain(model, x).outcomes[0].ran == 1  # it copies the model, which adds to the classes
    model = opswap.swap(WritesAndReads(), exact=True)
    assert "may write to 'groups'" in opswap.report(model).kept[0].reason
    assert torch.equal(model(x), by_size(x, 3))


class Sets(nn.Module):
    """As mmcv's ConvModule: its code replaces the forward of a layer for one call."""

    def __init__(self, conv: nn.Module, other: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.conv, self.other = conv, other

    def forward(self, x: Tensor) -> Tensor:
        if self.other is not None:
            self.conv.forward = self.other
        return self.conv(x)


class CallsSets(nn.Module):
    """Calls a module that sets the forward of `of`, then another one."""

    def __init__(self, of: nn.Module, then: nn.Module) -> None:
        super().__init__()
        self.sets, self.then = Sets(of, None), then

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.then(self.sets(x)), 2)


def double(x: Tensor) -> Tensor:
    return x * 2


def test_a_forward_that_is_set_on_a_layer() -> None:
    stock = CallsSets(nn.Conv2d(12, 12, 1), Sets(nn.Conv2d(12, 12, 1)))
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert opswap.report(model).swapped
    same(model, stock, images(2, 12, 4, 8))
    model.sets.other = stock.sets.other = double
    same(model, stock, images(2, 12, 4, 8))


def shuffled(x: Tensor, groups: int = 2) -> Tensor:
    return by_size(x, groups)


class Holder:
    """An object that is made anew in each call. Its part is not a module, as those of the modules below are."""

    def __init__(self) -> None:
        self.conv = shuffled

    def sets(self) -> None:
        self.conv.__defaults__ = (3,)


def sets(holder: Holder) -> None:
    holder.conv.__defaults__ = (3,)


class Child(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Identity()

    def writes(self) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        self.writes()
        return x


class Inside(Child):
    def writes(self) -> None:
        def inside(holder: Holder) -> None:
            holder.conv.__defaults__ = (3,)

        inside(Holder())


class ByAFunction(Child):
    def writes(self) -> None:
        sets(Holder())


class ByAnObject(Child):
    def writes(self) -> None:
        Holder().sets()


class OfItsPart(Child):
    def __init__(self) -> None:
        super().__init__()
        del self.conv
        self.conv = shuffled

    def writes(self) -> None:
        self.conv.__defaults__ = (3,)


class Delegates(Child):
    """Finds what it has not in another object."""

    def __init__(self) -> None:
        super().__init__()
        del self.conv
        self.__dict__["holder"] = Holder()

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["holder"], name)

    def writes(self) -> None:
        self.conv.__defaults__ = (3,)


class CallsAChild(nn.Module):
    def __init__(self, child: nn.Module) -> None:
        super().__init__()
        self.child = child

    def forward(self, x: Tensor) -> Tensor:
        return shuffled(self.child(x))


@pytest.fixture
def as_before() -> Iterator[None]:
    yield
    shuffled.__defaults__ = (2,)


@pytest.mark.parametrize("kind", [Delegates, Inside, ByAFunction, ByAnObject, OfItsPart])
@pytest.mark.usefixtures("as_before")
def test_what_is_written_in_parts(kind: type[nn.Module]) -> None:
    """A module that is called writes to what the forward uses afterwards."""
    model = opswap.swap(CallsAChild(kind()), exact=True)
    assert opswap.report(model).kept[0].path == ""
    x = images(2, 12, 4, 8)
    assert torch.equal(model(x), by_size(x, 3))


def test_a_forward_that_is_set_on_a_block_which_runs_later() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(12)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.bn(x))

    block = Block()
    stock = CallsSets(block, nn.Sequential(nn.Conv2d(12, 12, 1), block))
    stock.sets.other = double
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    same(model, stock, images(2, 12, 4, 8))
