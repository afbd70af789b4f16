# SPDX-License-Identifier: MIT
"""Forwards whose Python a capture would answer once and for all, and modules that resist being looked at or changed."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

import opswap
from spellings import Split, Wrapped, by_size
from swapping import images, same, swapped

HEIGHTS = {5: 3}


@dataclass
class Features:
    """What a network returns; counts its channels itself."""

    first: Tensor
    second: Tensor
    channels: int = field(init=False)

    def __post_init__(self) -> None:
        self.channels = self.first.shape[1]


@dataclass
class Pair:
    first: Tensor
    second: Tensor


class CallsItself(nn.Module):
    """As often as its argument says."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        return by_size(self.conv(x)) if depth == 0 else by_size(self(x, depth - 1), 3)


def recovers(x: Tensor) -> Tensor:
    try:
        return by_size(x.view(-1, 12, 4, 8))
    except RuntimeError:
        return x


def recovers_from_anything(x: Tensor) -> Tensor:
    try:
        return by_size(x.view(-1, 12, 4, 8))
    except:  # noqa: E722 (as people write it)
        return x


def by_text(x: Tensor) -> Tensor:
    return by_size(x, 2 if f"{x.shape[2]}" == "4" else 3)


def by_text_of_a_shape(x: Tensor) -> Tensor:
    return by_size(x, 2 if "4" in str(x.shape) else 3)


def by_size_in_a_set(x: Tensor) -> Tensor:
    return by_size(x, 3 if x.shape[2] in set(HEIGHTS) else 2)


def by_size_in_a_dict(x: Tensor) -> Tensor:
    return by_size(x, HEIGHTS.get(x.size(2), 2))


def by_shape_in_a_set(x: Tensor) -> Tensor:
    return by_size(x, 3 if x.shape in {(2, 12, 5, 8)} else 2)


def by_dtype_in_a_set(x: Tensor) -> Tensor:
    return by_size(x, 3 if x.dtype in {torch.float32} else 2)


KEPT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "calls itself": (CallsItself, "calls its own module"),
    **{
        body.__name__: (lambda body=body: Wrapped(body), reason)
        for body, reason in (
            (recovers, "catches exceptions"),
            (recovers_from_anything, "catches exceptions"),
            (by_text, "a string is built"),
            (by_text_of_a_shape, "a string is built"),
            (by_size_in_a_set, "pass example_inputs"),
            (by_size_in_a_dict, "pass example_inputs"),
            (by_shape_in_a_set, "is hashed"),
            (by_dtype_in_a_set, "is hashed"),
        )
    },
}


@pytest.mark.parametrize(("make", "reason"), KEPT.values(), ids=KEPT)
def test_what_a_forward_asks(make: Callable[[], nn.Module], reason: str) -> None:
    stock = make()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    report = opswap.report(model)
    assert not report.swapped and reason in report.kept[0].reason, str(report)
    for training in (True, False):
        for size in ((2, 12, 4, 8), (2, 12, 5, 8)):
            same(model.train(training), stock.train(training), images(*size))


def test_a_size_in_a_dict_with_example_inputs() -> None:
    stock = Wrapped(by_size_in_a_dict)
    model = swapped(stock, example_inputs=(images(),))
    for height in (4, 5, 6):
        same(model, stock, images(2, 12, height, 8))


class Returns(nn.Module):
    """What `make` makes of two tensors."""

    def __init__(self, make: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.conv, self.make = nn.Conv2d(12, 12, 1), make

    def forward(self, x: Tensor) -> object:
        y = by_size(self.conv(x))
        return self.make(y, y + 1)


class Found(dict):
    """A dict of somebody's own."""


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: OrderedDict(first=a, second=b),
        lambda a, b: Found(first=a, second=b),
        Features,
        Pair,
        lambda a, b: {"first": a, "second": b},
    ],
    ids=["OrderedDict", "subclass of dict", "dataclass with fields of its own", "dataclass", "dict"],
)
def test_containers_keep_their_class(make: Callable[[Tensor, Tensor], object]) -> None:
    stock = Returns(make)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    x = images()
    ours, theirs = model(x), stock(x)
    assert type(ours) is type(theirs)
    ours, theirs = (y if isinstance(y, dict) else vars(y) for y in (ours, theirs))
    assert list(ours) == list(theirs)
    assert all(torch.equal(torch.as_tensor(ours[k]), torch.as_tensor(theirs[k])) for k in ours)


class HidesItsChildren(Wrapped):
    def children(self) -> object:
        raise RuntimeError("not for you")


class Frozen(Wrapped):
    """Takes no attribute once it is made."""

    def __init__(self) -> None:
        super().__init__(by_size)
        self.made = True

    def __setattr__(self, name: str, value: object) -> None:
        if "made" in vars(self):
            raise AttributeError(f"{name} cannot be set")
        super().__setattr__(name, value)


def test_a_module_that_hides_its_children() -> None:
    model = nn.Sequential(HidesItsChildren(by_size), Split())
    x = images()
    expected = model(x)
    assert [s.path for s in opswap.report(opswap.swap(model, exact=True)).swapped] == ["1"]
    assert "not for you" in opswap.report(model).kept[0].reason
    assert torch.equal(model(x), expected)


def test_modules_without_sizes_yet() -> None:
    stock = nn.Sequential(nn.LazyConv2d(12, 1), Split(), Split())
    opswap.swap(stock, exact=True, strict=True)
    assert len(opswap.report(stock).swapped) == len(opswap.scan(stock, exact=True).swapped) == 2
    x = images()
    ours = stock(x)
    assert type(stock[0]) is nn.Conv2d
    assert torch.equal(opswap.unswap(stock)(x), ours)


def test_modules_without_data() -> None:
    stock = nn.Sequential(Split(), Split())
    model = copy.deepcopy(stock).to("meta")
    assert not opswap.report(opswap.swap(model, exact=True)).swapped
    assert {s.reason for s in opswap.report(model).kept} == {"no kernel for meta"}
    model.to_empty(device="cpu").load_state_dict(stock.state_dict())
    same(opswap.swap(model, exact=True, strict=True), stock)


def test_a_module_that_takes_no_attributes() -> None:
    stock = Frozen()
    model = copy.deepcopy(stock)
    assert opswap.report(opswap.swap(model, exact=True, strict=True)).swapped
    same(model, stock)
    assert type(opswap.unswap(model)) is Frozen and vars(model).keys() == vars(stock).keys()
