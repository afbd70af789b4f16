# SPDX-License-Identifier: MIT
"""What opswap measures and checks in one thread, while another one trains a swapped model."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.swap import VerificationError
from opswap.swap.own_draws import OwnDraws
from opswap.swap.planning import gains
from opswap.swap.rules import DEFAULT
from spellings import Split
from swapping import images
from test_swap_verify import wrong
from threads import elsewhere

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("one_thread")]


SHUFFLES = [r for r in DEFAULT if r.name == "channel_shuffle"]


def make_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), Split(), Split(), nn.MaxPool2d(2)
    )


class Training:
    """Steps of a swapped model on data of its own generator, one at a time."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
        self.generator = torch.Generator().manual_seed(seed)
        self.losses: list[float] = []

    def step(self) -> None:
        x = torch.randn(2, 12, 8, 8, generator=self.generator)
        loss = self.model(x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


def _while_it_trains(training: Training, work: Callable[[], Any]) -> None:
    """`work` runs here from the first step on, and until it ends another thread trains: ten steps at least."""
    began, done, errors = threading.Event(), threading.Event(), []

    def train() -> None:
        try:
            while not done.is_set() or len(training.losses) < 10:
                training.step()
                began.set()
        except BaseException as error:
            errors.append(error)
            began.set()

    thread = threading.Thread(target=train)
    thread.start()
    try:
        began.wait(60)
        work()
    finally:
        done.set()
        thread.join(120)
    if errors:
        raise errors[0]


def _merged() -> Any:
    heads = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(2))
    return opswap.merge.branches(heads, example_input=torch.randn(2, 4, 5, 5))


WORK: dict[str, Callable[[nn.Module], Any]] = {
    "swap": lambda m: opswap.swap(m, example_inputs=(images(),), inplace=False),
    "verify": lambda m: opswap.verify(m, (images(),)),
    "explain": lambda m: opswap.explain(m, images()),
    "optimize": lambda m: opswap.optimize(m, example_inputs=(images(),), flush_denormals=False),
    "tune": lambda m: opswap.tune([r for r in DEFAULT if r.name in ("amax", "channel_shuffle")], rounds=1),
    "merge": lambda m: _merged().measure(torch.randn(2, 4, 5, 5), seconds=0.0),
    "merge.tune": lambda m: opswap.merge.tune(seconds=0.0),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tables of its own, and few convolutions."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tune = sys.modules["opswap.merge.tune"]
    for name, value in (("_CHANNELS", ((4, 4),)), ("_BRANCHES", (2,)), ("_INPUTS", ((1, 3),))):
        monkeypatch.setattr(tune, name, value)
    monkeypatch.setattr(gains, "cache_file", lambda: tmp_path / "costs.json")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", WORK)
def test_the_other_thread_trains_as_if_alone(name: str) -> None:
    swapped, seed = opswap.swap(make_net()), torch.initial_seed()
    alone, beside = (Training(copy.deepcopy(swapped), seed) for _ in range(2))
    analysed = copy.deepcopy(swapped)
    _while_it_trains(beside, lambda: WORK[name](analysed))
    for _ in beside.losses:
        alone.step()
    assert beside.losses == alone.losses
    ours, theirs = beside.model.state_dict(), alone.model.state_dict()
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
    assert torch.get_num_threads() == 1 and torch.is_grad_enabled()


@pytest.mark.usefixtures("third_thread")
def test_a_run_on_examples_does_not_wind_back_what_others_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread draws while the copy of the model runs; afterwards it draws other numbers."""
    drawn: list[Tensor] = []
    plain = nn.Conv2d._conv_forward

    def draw(self: nn.Conv2d, *args: Any) -> Tensor:
        if isinstance(args[0], Tensor) and type(args[0]) is Tensor:
            drawn.append(elsewhere(lambda: torch.rand(4)))
        return plain(self, *args)

    monkeypatch.setattr(nn.Conv2d, "_conv_forward", draw)
    opswap.swap(make_net(), example_inputs=(images(),))
    drawn.append(torch.rand(4))
    assert len(drawn) > 1
    assert not any(torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])


class Masked(nn.Module):
    """Draws random numbers between convolutions, behind a shuffle."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw
        self.first, self.shuffle, self.last = nn.Conv2d(12, 12, 1), Split(), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.draw(self.shuffle(self.first(x))))


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda x: x * 2,
    "dropout": lambda x: F.dropout(x, 0.5),
    "in place": lambda x: F.dropout(x * 2, 0.5, inplace=True),
    "planes": lambda x: F.dropout2d(x, 0.5),
    "alpha": lambda x: F.alpha_dropout(x, 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rand": lambda x: x * torch.rand(x.shape),
    "randn_like": lambda x: x + torch.randn_like(x),
    "normal_": lambda x: x + torch.empty_like(x).normal_(),
    "randint": lambda x: x * torch.randint(3, x.shape),
    "randperm": lambda x: x[:, torch.randperm(x.shape[1])],
    "multinomial": lambda x: x * torch.multinomial(torch.ones(9), 1),
}


@pytest.fixture
def others_draw(third_thread: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """At each convolution another thread draws one number more from the process's generator; how many it were."""
    drawn: list[int] = [0]
    plain = F.conv2d

    def conv2d(*args: Any, **kwargs: Any) -> Tensor:
        drawn.append(drawn[-1] + 1)
        elsewhere(lambda: torch.rand(drawn[-1]))
        return plain(*args, **kwargs)

    monkeypatch.setattr(F, "conv2d", conv2d)
    return drawn


@pytest.mark.parametrize("name", DRAWS)
def test_verify_compares_the_same_masks(name: str, others_draw: list[int]) -> None:
    """Stock and swapped draw alike, though another thread draws in between."""
    report = opswap.verify(Masked(DRAWS[name]), (torch.randn(4, 12, 6, 6),), rules=SHUFFLES)
    assert "channel_shuffle" in {s.rule for s in report.swapped}
    assert all(c.holds and (c.error is None or c.error < 1e-4) for c in report.checks), report
    assert others_draw[-1] > 6


@pytest.mark.parametrize("name", ("dropout", "rand", "nothing"))
def test_verify_beside_a_thread_that_draws_finds_what_is_wrong(name: str, others_draw: list[int]) -> None:
    with pytest.raises(VerificationError):
        opswap.verify(
            Masked(DRAWS[name]),
            (torch.randn(4, 12, 6, 6),),
            rules=wrong("channel_shuffle(x0, 2, inverse=True)"),
        )


def test_a_generator_of_its_own_draws_what_the_default_one_would() -> None:
    x = torch.randn(4, 12, 6, 6)
    for draw in DRAWS.values():
        torch.manual_seed(3)
        expected = draw(x)
        state = torch.get_rng_state()
        with OwnDraws(3):
            assert torch.equal(draw(x), expected)
        assert torch.equal(torch.get_rng_state(), state)
        given = torch.Generator().manual_seed(5)
        expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
        with OwnDraws(3):
            assert torch.equal(torch.rand(3, generator=given), expected)


@pytest.mark.parametrize("threads", (1, 3))
def test_merge_tune_puts_back_what_belongs_to_the_process(
    threads: int, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune = sys.modules["opswap.merge.tune"]
    plain, calls = tune._row, []

    def interrupted(*args: Any) -> Any:
        calls.append(torch.get_num_threads())
        if len(calls) > 8:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(tune, "_row", interrupted)
    torch.set_num_threads(threads)
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    with contextlib.suppress(KeyboardInterrupt):
        opswap.merge.tune(seconds=0.0)
    assert torch.get_num_threads() == threads and set(calls) <= {1, threads}
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert np.random.get_state()[1].tolist() == before[2]
