# SPDX-License-Identifier: MIT
"""Forwards whose arguments are lists or tuples of tensors, as those of DenseNet's layers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import originals_of
from nearness import assert_model_as_near
from spellings import by_size
from step import assert_equal, outcome, outputs_and_gradients


class Dense(nn.Module):
    """A layer of a DenseNet, with a shuffle."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)

    def join(self, inputs: Any) -> Tensor:
        return torch.cat(inputs, 1)

    def forward(self, inputs: Any) -> Tensor:
        previous = [inputs] if isinstance(inputs, Tensor) else inputs
        return self.conv(torch.relu(self.norm(by_size(self.join(previous), 2))))


class Block(nn.Module):
    def __init__(self, kind: type = list) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(Dense(4 + 4 * i) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        features = self.kind((x,))
        for layer in self.layers:
            features = self.kind((*features, layer(features)))
        return torch.cat(features, 1)


def images(channels: int = 4) -> Tensor:
    return torch.randn(2, channels, 5, 7)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_dense_block(kind: type) -> None:
    stock = Block(kind)
    exact = opswap.swap(copy.deepcopy(stock), exact=True, strict=True, example_inputs=(images(),))
    x = images()
    assert_equal(outputs_and_gradients(exact, x), outputs_and_gradients(stock, x))
    for model in (exact, copy.deepcopy(exact), pickle.loads(pickle.dumps(exact)), exact.eval()):
        assert not originals_of(lambda m=model: m(images()))
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(images(),))
    assert sum(s.rule == "batch_norm_act" for s in opswap.report(model).swapped) == 3
    assert_model_as_near(model, stock, lambda: (images(),))
    assert not originals_of(lambda: model(images()))


def test_without_example_inputs_the_reason_says_so() -> None:
    model = opswap.swap(Block())
    text = str(opswap.explain(model, images()))
    assert "input 0 is a list of 1 tensors, was a Tensor: pass example_inputs to the swap" in text


class Pair(list):
    """A list that joins to something else."""

    def __iter__(self) -> Any:
        return iter([self[0], self[0]])


GIVEN: dict[str, Callable[[list[Tensor]], Any]] = {
    "more": lambda x: [*x, x[0], x[1]],
    "fewer": lambda x: x[:1],
    "none": lambda x: [],
    "a tuple": tuple,
    "a list of its own": Pair,
    "a tensor": lambda x: torch.cat(x, 1),
    "a number": lambda x: [x[0], 3],
    "the same twice": lambda x: [x[0], x[0]],
    "another size": lambda x: [t[:, :, :3] for t in x],
    "double": lambda x: [t.double() for t in x],
}


@pytest.mark.parametrize("given", GIVEN)
def test_other_arguments(given: str) -> None:
    stock = Dense(8)
    model = opswap.swap(copy.deepcopy(stock), exact=True, example_inputs=([images(), images()],))
    assert opswap.report(model).swapped
    x = GIVEN[given]([images(), images()])
    ours, theirs = outcome(lambda: model(x)), outcome(lambda: stock(x))
    assert torch.equal(ours, theirs) if isinstance(theirs, Tensor) else ours == theirs
    if given in ("more", "a tuple"):
        text = str(opswap.explain(model, x)) if given == "a tuple" else ""
        assert not text or "argument inputs is a tuple of 2 tensors, was a list of 2 tensors" in text


KEPT: list[Any] = []


class Appends(Dense):
    def join(self, inputs: Any) -> Tensor:
        inputs.append(inputs[0])
        return torch.cat(inputs[:2], 1)


class Replaces(Dense):
    def join(self, inputs: Any) -> Tensor:
        inputs[0] = inputs[0] + 1
        return torch.cat(inputs, 1)


class Keeps(Dense):
    def join(self, inputs: Any) -> Tensor:
        KEPT.append(inputs)
        return torch.cat(inputs, 1)


class Compares(Dense):
    def join(self, inputs: Any) -> Tensor:
        return torch.cat(inputs, 1) * (2 if any(inputs is k for k in KEPT) else 1)


class Writes(Dense):
    """Into a tensor of the list, which may be there twice."""

    def join(self, inputs: Any) -> Tensor:
        inputs[0].mul_(2)
        return torch.cat(inputs, 1)


@pytest.mark.parametrize("make", [Appends, Replaces, Keeps, Compares, Writes])
@pytest.mark.parametrize("twice", [False, True])
def test_what_a_forward_does_to_its_list(make: type[Dense], twice: bool) -> None:
    KEPT.clear()
    stock = make(8)
    model = opswap.swap(copy.deepcopy(stock), exact=True, example_inputs=([images(), images()],))
    KEPT.clear()  # the analysis runs the forward on its own tensors
    x = [images(), images()]
    x = [x[0], x[0]] if twice else x
    results = []
    for m in (stock, model):
        KEPT.clear()
        given = [x[0].clone()]
        given.append(given[0] if twice else x[1].clone())
        KEPT.append(given)
        with torch.no_grad():
            results.append((m(given), *given, len(KEPT)))
    assert_equal(list(results[1][:-1]), list(results[0][:-1]))
    assert len(results[0]) == len(results[1]) and results[0][-1] == results[1][-1]


class Child(nn.Module):
    """Writes to the list that its parent got."""

    def forward(self, inputs: list[Tensor]) -> Tensor:
        inputs.append(inputs[0])
        return torch.cat(inputs, 1)


class Passes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = Child()

    def forward(self, inputs: list[Tensor]) -> Tensor:
        return by_size(self.child(inputs), 2)


class Returns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, inputs: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return by_size(self.conv(inputs[0]), 2), inputs


def test_a_list_that_goes_on_stays_the_same_list() -> None:
    x = [images(), images()]
    model = opswap.swap(Passes(), exact=True, example_inputs=(list(x),))
    given = list(x)
    assert model(given).shape[1] == 12 and len(given) == 3
    model = opswap.swap(Returns(), exact=True, example_inputs=(list(x),))
    given = list(x)
    assert model(given)[1] is given


@pytest.mark.parametrize("size", [(2, 4, 5, 7), (2, 4, 1, 1)])
def test_a_question_about_sizes(size: tuple[int, ...]) -> None:
    class Asks(Dense):
        def join(self, inputs: Any) -> Tensor:
            if len(inputs) != 2:
                raise ValueError("two inputs")
            first, second = inputs
            return torch.cat(inputs if first.shape[2] > 1 else [second, first], 1)

    stock = Asks(8)
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True, example_inputs=([images(), images()],))
    x = [torch.randn(size), torch.randn(size)]
    assert torch.equal(model(x), stock(x))
    assert opswap.explain(model, x)


def test_compiled() -> None:
    stock = Block()
    model = opswap.swap(copy.deepcopy(stock), exact=True, example_inputs=(images(),))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    x = images()
    torch.testing.assert_close(compiled(x), stock(x))
