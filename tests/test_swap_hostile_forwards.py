# SPDX-License-Identifier: MIT
"""A swapped model computes what the stock one does, whatever its forward reads and whatever happens to that."""

from __future__ import annotations

import collections.abc
import copy
import pickle
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hostile_children  # noqa: F401 (adds to the table)
import hostile_forwards
import hostile_modules  # noqa: F401 (adds to the table)
import hostile_state
import hostile_switches  # noqa: F401 (adds to the table)
import opswap
from hostile_forwards import CASES, Forward
from spellings import by_size
from swapping import images


def reset() -> None:
    hostile_forwards.reset()
    hostile_state.reset()


@pytest.fixture(autouse=True)
def outside_as_it_was() -> Iterator[None]:
    filters = list(warnings.filters)
    reset()
    yield
    reset()
    warnings.filters[:] = filters


def made(case: Forward) -> nn.Module:
    torch.manual_seed(0)
    return case.make()


def answer(model: nn.Module, x: Tensor) -> Tensor | str:
    """What the model returns, or the class of what it raises."""
    torch.manual_seed(0)
    try:
        return model(x)
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("options", [{"exact": True}, {}], ids=["exact", "default"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_as_the_stock_model(case: Forward, options: dict[str, Any]) -> None:
    """With rules that round, errors of the proof are far larger than roundings: another number, another branch."""
    x = images()
    expected = []
    for model in (made(case), opswap.swap(made(case), **options)):
        reset()
        found = []
        for change in (lambda m: None, *case.changes):
            torch.manual_seed(0)
            change(model)
            for training in (False, True):
                found.append(answer(model.train(training), x))
        expected = expected or found
        for i, (mine, stock) in enumerate(zip(found, expected, strict=True)):
            if isinstance(stock, str):
                assert mine == stock, f"call {i}"
            elif options:
                assert torch.equal(mine, stock), f"call {i}"
            else:
                torch.testing.assert_close(mine, stock, rtol=1e-2, atol=1e-3, msg=lambda m: f"call {i}: {m}")  # noqa: B023


@pytest.mark.parametrize("name", ["is not the last layer", "is the layer in a variable", "is the same child"])
def test_the_identity_of_children_is_believed(name: str) -> None:
    """Which of the model's own modules one is: they are watched, and no tensor is one of them."""
    (case,) = [c for c in CASES if c.name == name]
    report = opswap.scan(made(case), exact=True)
    assert "channel_shuffle" in {s.rule for s in report.swapped}, str(report)


class Listed(nn.Module):
    """Asks whether an attribute is a Sequence, by the name of a module and by its own."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = [2]

    def forward(self, x: Tensor) -> Tensor:
        groups = 2 if isinstance(self.sizes, collections.abc.Sequence) else 3
        return by_size(x, groups if isinstance(self.sizes, Sequence) else 1)


def test_registrations_are_watched_in_copies_and_pickles_too() -> None:
    model, x = opswap.swap(Listed(), exact=True, strict=True), images()
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [o.result for o in opswap.explain(twin, x).outcomes] == ["ran"]
    watched = {name for _, name, _ in model._opswap_record.outside.watches}
    assert "registered" in watched
