# SPDX-License-Identifier: MIT
"""The demo's net of twelve branches, in a loop and merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import opswap

pytest.importorskip("rich")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from demo_settings import settings
from opswap.demo import DemoError, Settings, multi_branch, run
from opswap.demo.multi_branch import GROUPS, MultiBranchTask, group_loss
from opswap.demo.training import Learner, train_close

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_branch, "_MEASURING_SECONDS", 0.01)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything runs merged."""
    monkeypatch.setattr(opswap.merge.MergedBranches, "measure", lambda self, *inputs, **options: None)


def _settings(tmp_path: Path, **changed: object) -> Settings:
    return settings(tmp_path, **{"only": "multi_branch", "batch_size": 4, "branch_steps": 3, **changed})


@pytest.mark.usefixtures("measured")
def test_loop_and_merged_train_alike(tmp_path: Path) -> None:
    task = MultiBranchTask(_settings(tmp_path))
    (stage,) = task.stages()
    assert (stage.steps, list(stage.done)) == (3, [1, 2, 3])
    loop, merged = task.learners
    assert [learner.name for learner in task.learners] == ["loop", "merged"]
    assert isinstance(merged.model.branches, opswap.merge.MergedBranches)
    assert loop.losses == pytest.approx(merged.losses, rel=1e-9) and len(loop.losses) == 3
    outcome = task.outcome()
    assert list(outcome.accuracies) == ["loop", "merged"]
    assert "(allowed: 1e-09" in outcome.notes[0] and all(name in outcome.notes[1] for name in GROUPS)
    assert task.report.timings, "the merged net was measured"


@pytest.mark.usefixtures("unmeasured")
def test_a_step_and_a_single_image_are_timed_in_both_formats(tmp_path: Path) -> None:
    step, inference = MultiBranchTask(_settings(tmp_path, rounds=1)).format_timings()
    assert list(step.run()) == [1, 2, 3]
    assert len(list(inference.run())) == inference.steps == 22
    names = ["loop contiguous", "loop channels_last", "merged contiguous", "merged channels_last"]
    for timing in (step, inference):
        assert list(timing.spreads()) == names
        assert all(0 < s.low <= s.median <= s.high for s in timing.spreads().values())
    assert not any(learner.model.training for learner in inference._learners)


@pytest.mark.usefixtures("unmeasured")
def test_a_shorter_training_is_not_judged(tmp_path: Path) -> None:
    assert MultiBranchTask(_settings(tmp_path)).min_accuracy == 0.0
    assert MultiBranchTask(_settings(tmp_path, branch_steps=132)).min_accuracy == 85.0


@pytest.mark.usefixtures("unmeasured")
def test_losses_that_differ_stop_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nearly(modules: nn.ModuleList) -> opswap.merge.MergedBranches:
        merged = stock_branches(modules)
        with torch.no_grad():
            next(merged.parameters()).mul_(1.5)
        return merged

    stock_branches = opswap.merge.branches
    monkeypatch.setattr(opswap.merge, "branches", nearly)
    with pytest.raises(DemoError, match=r"losses of step \d differ by more than 1e-09 of their value: loop"):
        run(_settings(tmp_path))


class _Fixed(nn.Module):
    """Losses of its own, whatever the input."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.values[self.calls - 1]


def test_losses_may_differ_by_the_tolerance_alone() -> None:
    batches = [(torch.zeros(1), torch.zeros(1))] * 3

    def learners(*losses: list[float]) -> list[Learner]:
        return [
            Learner(name, _Fixed(values), lambda y, labels: y, steps=3, learning_rate=1e-30)
            for name, values in zip("ab", losses, strict=True)
        ]

    close = learners([1.0, 1.0, 1.0], [1.0, 1.001, 0.991])
    assert list(train_close(*close, batches, 0.01)) == [1, 2, 3]
    for values, step in (([1.0, 1.02, 1.0], 2), ([1.0, 1.0, 0.98], 3), ([float("nan"), 1.0, 1.0], 1)):
        far = learners([1.0, 1.0, 1.0], values)
        with pytest.raises(DemoError, match=f"losses of step {step} differ by more than 0.01 .* a 1.0, b "):
            list(train_close(*far, batches, 0.01))


def test_every_group_has_the_classes_of_its_name() -> None:
    assert [n % 3 for n in range(10)] == list(GROUPS["remainder by 3"])
    assert [int(n in (2, 3, 5, 7)) for n in range(10)] == list(GROUPS["prime"])
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert [len(name) - 3 for name in names] == list(GROUPS["letters of its name"])
    assert [(6, 2, 5, 5, 4, 5, 6, 3, 7, 6)[n] - 2 for n in range(10)] == list(GROUPS["segments of a display"])
    assert all(set(classes) == set(range(max(classes) + 1)) for classes in GROUPS.values())


def test_the_loss_is_the_mean_over_the_groups() -> None:
    labels = torch.tensor([3, 8])
    output = torch.randn(2, sum(max(c) + 1 for c in GROUPS.values()))
    first = F.cross_entropy(output[:, :10], labels)
    assert group_loss(output, labels) < first + 5
    sharp = torch.full_like(output, -50.0)
    start = 0
    for classes in GROUPS.values():
        for row, digit in enumerate(labels.tolist()):
            sharp[row, start + classes[digit]] = 50.0
        start += max(classes) + 1
    assert group_loss(sharp, labels) < 1e-6
    sharp[0, 3] = -100.0
    assert group_loss(sharp, labels) > 1.0
