# SPDX-License-Identifier: MIT
"""Random generators after code that draws for itself."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import opswap
from opswap._draws import generators_kept
from opswap.memory.page_faults import allocator_cost
from opswap.memory.timing import time_operator, time_step
from threads import elsewhere


def drawing() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))


def merges(first: nn.Module, second: nn.Module) -> None:
    opswap.merge.branches([first, second], example_input=torch.ones(4, 4)).measure(
        torch.ones(4, 4), seconds=0.01
    )


def times_a_step(model: nn.Module, _: nn.Module) -> None:
    time_step(lambda: model(torch.ones(4, 4)), model, ())


def counts_page_faults(*_: nn.Module) -> None:
    allocator_cost()


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a thread"])
def test_generators_are_kept(beside: bool, request: pytest.FixtureRequest) -> None:
    if beside:
        request.getfixturevalue("third_thread")
    python, state, numpy = random.getstate(), torch.get_rng_state(), np.random.get_state()
    with pytest.raises(ZeroDivisionError), generators_kept():
        torch.rand(3)
        random.random()
        np.random.rand(3)
        raise ZeroDivisionError
    assert random.getstate() == python and torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy[1])


@pytest.mark.usefixtures("third_thread")
@pytest.mark.parametrize("measures", [merges, times_a_step, counts_page_faults])
def test_measurements_draw_nothing(measures: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opswap.memory.timing._STEP_SECONDS", 0.01)
    monkeypatch.setattr("opswap.memory.page_faults._SIZE", (2, 3, 64, 64))
    modules = drawing(), drawing()
    state = torch.get_rng_state()
    measures(*modules)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_operator_that_is_timed_winds_no_other_thread_back() -> None:
    """It draws nothing; a training step beside it may."""
    drawn = []

    class Beside:
        _schema = torch.ops.aten.add.Tensor._schema

        def __call__(self) -> None:
            drawn.append(elsewhere(lambda: torch.rand(4)))

    time_operator(Beside(), (), {})
    time_operator(Beside(), (), {})
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == len(drawn)
