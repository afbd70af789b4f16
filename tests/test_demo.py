# SPDX-License-Identifier: MIT
"""The demo in a small configuration, and what must make it fail."""

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import opswap

pytest.importorskip("rich")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from opswap import cli
from opswap.demo import DemoError, Settings, digits, run
from opswap.demo.shufflenet import ShuffleNetTask
from opswap.demo.training import Learner, check_equal_parameters, in_turn, swap_exactly

_SMALL = [
    "--threads",
    "1",
    "--rounds",
    "0",
    "--epochs",
    "1",
    "--batch-size",
    "479",
    "--image-size",
    "32",
    "--min-accuracy",
    "0",
]


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def _settings(tmp_path: Path, **changed: object) -> Settings:
    small = Settings(
        epochs=1,
        batch_size=479,
        image_size=32,
        seed=0,
        threads=1,
        rounds=0,
        min_accuracy=0.0,
        output=tmp_path / "plot",
    )
    return dataclasses.replace(small, **changed)


def test_demo_trains_both_models_and_draws_a_png(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", *_SMALL]) == 0
    printed = capsys.readouterr().out
    assert "17 swapped" in printed
    assert "all 3 losses, all 338 parameters and buffers" in printed
    assert (tmp_path / "opswap-demo.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_demo_fails_below_the_accuracy_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "plot.dat"
    arguments = [*_SMALL, "--min-accuracy", "100", "--batch-size", "720", "--output", str(output)]
    assert cli.main(["demo", *arguments]) == 1
    assert "expected at least 100 %" in capsys.readouterr().err
    assert output.read_bytes().startswith(b"\x89PNG")


def test_a_loss_that_differs_in_one_bit_stops_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly(model: nn.Module, *, exact: bool) -> nn.Module:
        opswap_swap(model, exact=exact)
        with torch.no_grad():
            model.fc.bias[0] += 1e-6
        return model

    opswap_swap = opswap.swap
    monkeypatch.setattr(opswap, "swap", nearly)
    with pytest.raises(DemoError, match="losses of step 1 differ: stock "):
        run(_settings(tmp_path))


def test_a_model_without_anything_to_swap_is_refused() -> None:
    with pytest.raises(DemoError, match="nothing to replace in Linear"):
        swap_exactly(nn.Linear(2, 2))


def test_parameters_that_differ_are_named() -> None:
    stock = nn.Linear(2, 2)
    other = copy.deepcopy(stock)
    assert check_equal_parameters(stock, other) == 2
    with torch.no_grad():
        other.bias[1] += 0.5
    with pytest.raises(DemoError, match=r"'bias' differs by up to 0\.\d+"):
        check_equal_parameters(stock, other)


def test_memory_formats_are_timed_for_every_copy(tmp_path: Path) -> None:
    timing = ShuffleNetTask(_settings(tmp_path, rounds=1, batch_size=2)).format_timings()[0]
    assert list(timing.run()) == [1, 2, 3]
    spreads = timing.spreads()
    names = ["stock contiguous", "stock channels_last", "swapped contiguous", "swapped channels_last"]
    assert list(spreads) == names
    assert all(0 < s.low <= s.median <= s.high for s in spreads.values())


def test_every_learner_sees_every_batch_once() -> None:
    model = nn.Linear(2, 2)
    learners = [
        Learner(name, copy.deepcopy(model), nn.functional.cross_entropy, steps=3, learning_rate=0.1)
        for name in ("a", "b", "c")
    ]
    batches = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
    assert list(in_turn(learners, batches)) == [1, 2, 3]
    assert len(learners[0].losses) == 3 and len(set(learners[0].losses)) == 3
    assert learners[0].losses == learners[1].losses == learners[2].losses


def test_digits_are_split_without_overlap_and_by_seed() -> None:
    data, again, other = digits.load(16, seed=3), digits.load(16, seed=3), digits.load(16, seed=4)
    assert len(data.train_labels) == 1437 and len(data.held_out_labels) == 360
    assert data.train_images.shape[1:] == (3, 16, 16)
    held_out = {t.numpy().tobytes() for t in data.held_out_images}
    assert not held_out & {t.numpy().tobytes() for t in data.train_images}
    assert torch.equal(data.train_images, again.train_images)
    assert not torch.equal(data.train_labels, other.train_labels)
    counts = data.held_out_labels.bincount(minlength=digits.CLASSES)
    assert counts.min() >= 34 and counts.max() <= 38


@pytest.mark.parametrize(("batch_size", "expected"), [(479, 3), (500, 2), (5000, 1)])
def test_batches_are_full_and_as_many_as_announced(batch_size: int, expected: int) -> None:
    data = digits.load(16, seed=0)
    sizes = [len(labels) for _, labels in digits.batches(data, batch_size, 2, seed=0)]
    assert sizes == [min(batch_size, 1437)] * (2 * expected)
    assert digits.batches_per_epoch(data, batch_size) == expected
