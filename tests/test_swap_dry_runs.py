# SPDX-License-Identifier: MIT
"""What a model's code writes outside of the model while swap, optimize, verify or explain run it is taken back."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap.capture import example_run
from opswap.swap.capture.dry_run import DryRuns
from swapping import images

LOSSES: list[Tensor] = []
BY_NAME: dict[str, int] = {}
SEEN: set[int] = set()
LAST: deque[int] = deque(maxlen=2)
KINDS: Counter[str] = Counter()
STATE = SimpleNamespace(calls=0, last=None)
CALLS = 0


class Meter:
    total = 0

    def __init__(self) -> None:
        self.values: list[float] = []
        self.count = 0

    def add(self) -> None:
        self.values.append(1.0)
        self.count += 1
        Meter.total += 1


METER = Meter()


def counting() -> Callable[[], int]:
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    return add


ADD = counting()


def write_to_globals(x: Tensor) -> None:
    global CALLS
    CALLS += 1
    LOSSES.append(x.square().mean())
    BY_NAME["calls"] = BY_NAME.get("calls", 0) + 1
    SEEN.add(len(SEEN))
    LAST.append(CALLS)
    KINDS["call"] += 1
    STATE.calls += 1
    STATE.last = x.shape
    METER.add()
    ADD()


class Penalty(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        write_to_globals(x)
        type(self).calls += 1
        return x * 1


def state() -> list[Any]:
    meter = (list(METER.values), METER.count, Meter.total)
    containers = (list(LOSSES), dict(BY_NAME), set(SEEN), list(LAST), dict(KINDS))
    cell = ADD.__closure__[0].cell_contents
    return [*containers, STATE.calls, STATE.last, CALLS, meter, cell, Penalty.calls]


def made() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Penalty(), nn.MaxPool2d(2))
    return nn.Sequential(*layers), images(2, 3, 8, 8)


RUNS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "swap": opswap.swap,
    "swap, inputs": lambda m, x: opswap.swap(m, example_inputs=(x,)),
    "swap, verified": lambda m, x: opswap.swap(m, verify_with=(x,)),
    "scan": lambda m, x: opswap.scan(m, example_inputs=(x,)),
    "optimize": lambda m, x: opswap.optimize(m, example_inputs=(x,), reuse_memory=False),
    "verify": lambda m, x: opswap.verify(m, (x,)),
    "explain": lambda m, x: opswap.explain(opswap.swap(m), x),
}
DRY = {name: run for name, run in RUNS.items() if name != "swap"}


class ByName(nn.Module):
    """Writes attributes of a class, and global variables, whose names are put together."""

    first_calls = 0
    second_calls: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        for kind in ("first", "second"):
            setattr(ByName, f"{kind}_calls", (getattr(ByName, f"{kind}_calls") or 0) + 1)
        setattr(sys.modules[__name__], "CAL" + "LS", CALLS + 1)
        return x * 1


@pytest.mark.parametrize("run", DRY.values(), ids=DRY)
def test_nothing_stays_written_by_names_that_are_put_together(
    run: Callable[[nn.Module, Tensor], Any],
) -> None:
    model, x = nn.Sequential(nn.BatchNorm2d(3), ByName(), nn.MaxPool2d(2)), images(2, 3, 8, 8)
    before = ByName.first_calls, ByName.second_calls, CALLS
    run(model, x)
    assert (ByName.first_calls, ByName.second_calls, CALLS) == before
    model(x)
    assert (ByName.first_calls, CALLS) == (before[0] + 1, before[2] + 1)


@pytest.mark.parametrize("run", DRY.values(), ids=DRY)
def test_nothing_stays_written(run: Callable[[nn.Module, Tensor], Any]) -> None:
    model, x = made()
    model(x)
    before = state()
    run(model, x)
    now = state()
    assert all(a is b for a, b in zip(now.pop(0), before.pop(0), strict=True)) and now == before
    model(x)
    assert state()[1]["calls"] == before[0]["calls"] + 1  # the model's own calls are counted


def test_a_run_that_fails_is_taken_back() -> None:
    model, x = made()
    before = state()[1:]
    with pytest.raises(ValueError, match="does not run on example_inputs"):
        opswap.swap(nn.Sequential(model, nn.Linear(1000, 2)), example_inputs=(x,))
    assert state()[1:] == before


class Sealed(type):
    def __delattr__(cls, name: str) -> None:
        raise TypeError("sealed")


class Mark(metaclass=Sealed):
    seen: bool


class Generating(nn.Module):
    """Draws from a generator of its own, whose member in C is another number at each read, and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(1, generator=self.generator)
        self.last = torch.relu(self.norm(self.conv(x))) + noise
        return self.last


class Marking(Generating):
    def forward(self, x: Tensor) -> Tensor:
        Mark.seen = True
        return super().forward(x)


@pytest.mark.parametrize("kind", [Generating, Marking])
@pytest.mark.parametrize("run", DRY.values(), ids=DRY)
def test_what_cannot_be_put_back_stops_nothing(
    run: Callable[[nn.Module, Tensor], Any], kind: type[Generating]
) -> None:
    writer = kind()
    model, x = nn.Sequential(writer), images(2, 8, 8, 8)
    if "seen" in vars(Mark):
        type.__delattr__(Mark, "seen")
    run(model, x)
    assert writer.last is None
    assert model(x) is writer.last


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.conv(x))  # of two calls, the sizes are not known
        return self.norm(y) if y.shape[2] > 4 else y


def test_for_the_values_of_one_graph_the_modules_that_it_calls_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look at the whole model for each of its modules would take minutes in large ones."""
    looked: list[set[type]] = []

    class Looks(DryRuns):
        def __init__(self, *modules: nn.Module) -> None:
            looked.append({type(m) for m in modules})
            super().__init__(*modules)

    monkeypatch.setattr(example_run, "DryRuns", Looks)
    model, before = nn.Sequential(Asks(), Penalty()), state()[1:]
    opswap.swap(model, example_inputs=(images(2, 8, 8, 8),))
    assert looked.count({nn.Sequential}) == 1 and {nn.Conv2d} in looked
    assert not any(Penalty in kinds and nn.Conv2d in kinds for kinds in looked)
    assert state()[1:] == before
