# SPDX-License-Identifier: MIT
"""Arguments with a default that the calls of the example run give, as the shortcut of DLA's blocks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import originals_of
from nearness import assert_model_as_near
from step import assert_equal, outcome, outputs_and_gradients


class Block(nn.Module):
    """timm's DlaBasic."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x: Tensor, shortcut: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        if shortcut is None:
            shortcut = 2 * x
        if scale is not None:
            x = x * scale
        return self.act(self.bn(self.conv(x))) + shortcut


class Twice(Block):
    """Which the second block's call does not give."""

    def __init__(self, call: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.call = Block(), Block(), [call]

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.call[0](self.first, x))


def images() -> Tensor:
    return torch.randn(2, 4, 6, 5)


def third(block: nn.Module, x: Tensor) -> Tensor:
    return block(x, None, x)


CALLS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "by position": lambda block, x: block(x, x.flip(3)),
    "by name": lambda block, x: block(x, shortcut=x.flip(3)),
    "the last alone": third,
    "the last by name": lambda block, x: block(scale=x.flip(3), x=x),
    "all": lambda block, x: block(x, x.flip(2), x.flip(3)),
    "several calls": lambda block, x: block(block(x, x.flip(3)), x),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_path_that_the_calls_take(name: str) -> None:
    call = CALLS[name]
    stock = Twice(call)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(images(),), strict=True)
    fresh = copy.deepcopy(model)
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model.first))):
        run = twin if isinstance(twin, Twice) else lambda x, block=twin: call(block, x)
        assert not originals_of(lambda run=run: run(images()))
    assert_model_as_near(fresh, stock, lambda: (images(),))


def blocks() -> tuple[Block, nn.Module]:
    stock = Block()
    return stock, opswap.swap(copy.deepcopy(stock), example_inputs=(images(), images()), strict=True).eval()


OTHERS: dict[str, tuple[tuple[object, ...], str]] = {
    "none": ((None,), "argument shortcut is None, was a tensor in the run with example_inputs"),
    "left out": ((), "argument shortcut is None, was a tensor in the run with example_inputs"),
    "a number": ((3.0,), "input 1 is 3.0, was a Tensor"),
    "more": ((images(), images()), "argument scale is float32"),
    "too many": ((images(), images(), 1), ""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls_run_the_original(name: str) -> None:
    others, reason = OTHERS[name]
    stock, model = blocks()
    stock.eval()
    x = images()
    ours, theirs = outcome(lambda: model(x, *others)), outcome(lambda: stock(x, *others))
    assert torch.equal(ours, theirs) if isinstance(theirs, Tensor) else ours == theirs
    if reason:
        assert originals_of(lambda: model(x, *others)) == 1
        assert reason in str(opswap.explain(model, x, *others))


def test_a_positional_argument_is_not_taken_for_a_later_one() -> None:
    stock = Twice(third).eval()
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(images(),), exact=False)
    x, y = images(), images()
    assert originals_of(lambda: model.first(x, None, y)) == 0
    assert torch.allclose(model.first(x, y), stock.first(x, y), atol=1e-6)
    assert originals_of(lambda: model.first(x, y)) == 1


@pytest.mark.parametrize("first", [0, 1])
def test_calls_that_differ_keep_the_default(first: int) -> None:
    def call(block: nn.Module, x: Tensor) -> Tensor:
        calls = [lambda: block(x, x), lambda: block(x)]
        return calls[first]() + calls[1 - first]()

    model = opswap.swap(Twice(call), example_inputs=(images(),))
    assert originals_of(lambda: model.first(images())) == 0
    assert originals_of(lambda: model.first(images(), images())) == 1


def test_without_example_inputs_the_default_is_taken() -> None:
    model = opswap.swap(Block())
    assert originals_of(lambda: model(images())) == 0
    text = str(opswap.explain(model, images(), images()))
    assert "argument shortcut is float32 (2, 4, 6, 5), was None by default" in text


class Elements(Block):
    """With a mask, a forward that has no graph."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None and mask.sum() > 0:
            x = x * mask
        return self.act(self.bn(self.conv(x)))


def test_a_path_that_has_no_graph_leaves_that_of_the_default() -> None:
    model = opswap.swap(Elements(), example_inputs=(images(), images()), strict=True)
    assert originals_of(lambda: model(images())) == 0
    assert originals_of(lambda: model(images(), images())) == 1


class Named(Block):
    def forward(self, x: Tensor, *, shortcut: Tensor | None = None) -> Tensor:
        return super().forward(x, shortcut)


def test_an_argument_that_must_be_named_keeps_its_default() -> None:
    stock = Twice(CALLS["by name"])
    stock.first = Named()
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(images(),))
    assert_model_as_near(model, stock, lambda: (images(),))
    assert originals_of(lambda: model.first(images())) == 0


def test_compiled() -> None:
    stock = Twice(CALLS["by position"])
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(images(),), exact=True)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = images()
    assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
