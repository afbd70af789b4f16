# SPDX-License-Identifier: MIT
"""The demo in a small configuration, and what must make it fail."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import opswap

pytest.importorskip("rich")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from demo_settings import settings
from opswap import cli
from opswap.demo import DemoError, digits, lprnet, run
from opswap.demo.detection import Detection
from opswap.demo.lprnet import LPRNetTask
from opswap.demo.shufflenet import ShuffleNetTask
from opswap.demo.training import Learner, check_equal_parameters, check_finite, in_turn, swap_exactly
from opswap.memory.switches import reuses_freed

pytestmark = pytest.mark.usefixtures("one_thread")

_QUICK = ["--threads", "1", "--rounds", "0", "--epochs", "1", "--image-size", "32", "--min-accuracy", "0"]
_QUICK += ["--compared-steps", "1", "--branch-steps", "2", "--detection-steps", "4"]
_SHUFFLENET = [*_QUICK, "--only", "shufflenet", "--batch-size", "479"]
_LPRNET = [*_QUICK, "--only", "lprnet", "--batch-size", "2", "--steps", "3"]
_BRANCHES = [*_QUICK, "--only", "multi_branch", "--batch-size", "4"]
_LAYOUTS = ("contiguous", "channels_last")
_PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def _few_held_out_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lprnet, "_HELD_OUT", 8)


@pytest.fixture(autouse=True)
def _memory_as_before() -> Iterator[None]:
    yield
    if reuses_freed():
        opswap.memory.reuse_freed(False)


@pytest.fixture(autouse=True)
def _uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_demo_detection.py has the compiler's graphs counted."""
    monkeypatch.setattr(Detection, "count_graphs", lambda self: None)


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged branches run merged; test_demo_branches.py has them measured."""
    monkeypatch.setattr(opswap.merge.MergedBranches, "measure", lambda self, *inputs, **options: None)


def test_demo_trains_both_copies_of_all_networks_and_draws_one_png(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", *_QUICK, "--batch-size", "32", "--steps", "2"]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # rich breaks lines
    assert re.search(r"\d\d swapped: .* x cat_channel_shuffle", printed) and "x max_pool3d" in printed
    assert "memory format: channels_last" in printed
    assert "the losses of the first 1 steps, then all 338 parameters" in printed
    assert "the losses of the first 1 steps, then all 62 parameters" in printed
    assert "Held-out strips read: 0.0 % of 8" in printed
    assert "12 branches, 10 layers merged" in printed and "(allowed: 1e-09" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["opswap-demo.png"]
    assert (tmp_path / "opswap-demo.png").read_bytes().startswith(_PNG)


def test_branches_alone_as_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["demo", *_BRANCHES, "--output", str(tmp_path / "plot.png")]
    assert cli.main([*arguments, "--json", str(tmp_path / "out.json")]) == 0
    short = capsys.readouterr().out
    assert "Plot:" in short and "\x1b" not in short
    assert "Multi-branch net on" in short and "LPRNet" not in short and "ShuffleNet" not in short
    assert "12 branches, 10 layers merged" in short and "--verbose" in short
    found = json.loads((tmp_path / "out.json").read_text())
    network = found["networks"]["Multi-branch net"]
    assert [len(losses) for losses in network["losses"].values()] == [2, 2]
    assert set(network["step_ms"]) == set(network["accuracies"]) == {"loop", "merged"}
    assert cli.main([*arguments, "--json", "-", "--verbose"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["networks"].keys() == found["networks"].keys() and "Plot:" in printed.err
    assert len(printed.err.splitlines()) > len(short.splitlines()) and "--verbose" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "said", "unsaid", "least"),
    [
        (
            [*_SHUFFLENET, "--min-accuracy", "100", "--batch-size", "720"],
            "ShuffleNetV2 x0.5 on",
            "LPRNet",
            "at least 100 %",
        ),
        (
            [*_LPRNET, "--full"],
            "LPRNet on",
            "ShuffleNet",
            "held-out accuracy 0.00 % on strips of seven handwritten digits, expected at least 90 %",
        ),
    ],
)
def test_only_one_network_fails_below_the_accuracy_asked_for(
    arguments: list[str],
    said: str,
    unsaid: str,
    least: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "plot.dat"
    assert cli.main(["demo", *arguments, "--output", str(output)]) == 1
    printed = capsys.readouterr()
    assert least in printed.err
    assert said in printed.out and unsaid not in printed.out
    assert output.read_bytes().startswith(_PNG)


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        (["--only", "resnet"], "'resnet'"),
        (["--steps", "0"], "'0'"),
        (["--compared-steps", "few"], "'few'"),
        (["--full", "--only", "detection"], "'detection'"),
        (["--full", "--only", "multi_branch"], "'multi_branch'"),
        (["--branch-steps", "0"], "'0'"),
        (["--steps", "8", "--compared-steps", "8"], "8 of 8 steps"),
    ],
)
def test_bad_arguments_exit_with_2_and_quote_the_value(
    arguments: list[str], quoted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", *arguments])
    assert stop.value.code == 2
    assert quoted in capsys.readouterr().err


@pytest.mark.parametrize("only", ["shufflenet", "lprnet"])
def test_a_loss_that_differs_in_one_bit_stops_the_demo(
    only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly(model: nn.Module, *, exact: bool) -> nn.Module:
        opswap_swap(model, exact=exact)
        with torch.no_grad():
            list(model.parameters())[-1][0] += 1e-4
        return model

    opswap_swap = opswap.swap
    monkeypatch.setattr(opswap, "swap", nearly)
    with pytest.raises(DemoError, match="losses of step 1 differ: stock "):
        run(settings(tmp_path, only=only, batch_size=8))


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
    timing = ShuffleNetTask(settings(tmp_path, rounds=1, batch_size=2)).format_timings()[0]
    assert list(timing.run()) == [1, 2, 3]
    spreads = timing.spreads()
    names = [f"{form} {layout}" for form in ("stock", "exact", "swapped") for layout in _LAYOUTS]
    assert list(spreads) == names
    assert all(0 < s.low <= s.median <= s.high for s in spreads.values())


def test_lprnet_is_timed_without_the_format_that_stock_refuses(tmp_path: Path) -> None:
    (timing,) = LPRNetTask(settings(tmp_path, rounds=1, batch_size=2)).format_timings()
    assert list(timing.run()) == [1, 2, 3]
    assert list(timing.spreads()) == [
        "stock contiguous",
        *(f"{form} {layout}" for form in ("exact", "swapped") for layout in _LAYOUTS),
    ]


def test_the_optimized_lprnet_trains_in_channels_last_beside_stock(tmp_path: Path) -> None:
    task = LPRNetTask(settings(tmp_path, batch_size=2, steps=12, compared_steps=2))
    done = [(stage.steps, list(stage.done)) for stage in task.stages()]
    assert done == [(2, [1, 2]), (1, [1]), (9, list(range(1, 10)))]
    stock, exact, optimized = task.learners
    assert stock.losses[:2] == exact.losses
    assert (len(stock.losses), len(exact.losses), len(optimized.losses)) == (3, 2, 12)
    assert optimized.losses[0] == pytest.approx(stock.losses[0], rel=1e-3)
    weight = optimized.model.backbone[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
    assert list(task.outcome().accuracies) == ["optimized"]


def test_stock_and_optimized_shufflenet_train_to_the_end(tmp_path: Path) -> None:
    task = ShuffleNetTask(settings(tmp_path, compared_steps=1))
    assert [stage.steps for stage in task.stages() if list(stage.done)] == [1, 2]
    assert [len(learner.losses) for learner in task.learners] == [3, 1, 3]
    assert list(task.outcome().accuracies) == ["stock", "optimized"]


def test_a_loss_that_is_not_finite_stops_the_demo() -> None:
    learner = Learner("optimized", nn.Linear(2, 2), nn.functional.mse_loss, steps=2, learning_rate=0.1)
    learner.losses = [1.0, float("nan")]
    with pytest.raises(DemoError, match="optimized: the loss of step 2 is nan"):
        check_finite(learner)


def test_full_trains_longer_and_asks_for_nine_in_ten(tmp_path: Path) -> None:
    usual = LPRNetTask(settings(tmp_path, steps=None))
    full = LPRNetTask(settings(tmp_path, steps=None, full=True))
    assert full.steps > usual.steps
    assert (usual.min_accuracy, full.min_accuracy) == (0.0, 90.0)


def test_full_trains_in_16_bits_too(tmp_path: Path) -> None:
    task = ShuffleNetTask(settings(tmp_path, full=True, only="shufflenet"))
    for stage in task.stages():
        list(stage.done)
    losses = {learner.name: learner.losses for learner in task.learners}
    assert list(losses) == ["stock", "exact", "optimized", "bfloat16", "float16"]
    assert losses["bfloat16"] == pytest.approx(losses["stock"], rel=0.1)
    assert losses["float16"] == pytest.approx(losses["stock"], rel=0.1)
    assert [learner.dtype for learner in task.learners[3:]] == [torch.bfloat16, torch.float16]
    accuracies = task.outcome().accuracies
    assert set(accuracies) == {"stock", "optimized", "bfloat16", "float16"}


def test_predicts_with_the_average_where_one_is_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    learner = Learner("averaged", model, nn.functional.cross_entropy, steps=4, learning_rate=0.1)
    learner.keep_average(0.75)
    states = []
    for _ in range(3):
        learner.step(torch.randn(8, 3), torch.randint(2, (8,)))
        states.append(copy.deepcopy(model.state_dict()))
    first, second, third = states
    averaged = copy.deepcopy(model).eval()
    averaged.load_state_dict(
        {k: 0.75 * (0.75 * first[k] + 0.25 * second[k]) + 0.25 * third[k] for k in third}
    )
    x = torch.randn(5, 3)
    torch.testing.assert_close(learner.predict(x), averaged(x))
    assert not torch.allclose(averaged(x), copy.deepcopy(model).eval()(x))


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
    data, again, other = (digits.load((16, 12), seed) for seed in (3, 3, 4))
    assert len(data.train_labels) == 1437 and len(data.held_out_labels) == 360
    assert data.train_images.shape[1:] == (1, 16, 12)
    assert data.train_images.min() == 0.0 and data.train_images.max() == 1.0
    held_out = {t.numpy().tobytes() for t in data.held_out_images}
    assert not held_out & {t.numpy().tobytes() for t in data.train_images}
    assert torch.equal(data.train_images, again.train_images)
    assert not torch.equal(data.train_labels, other.train_labels)
    counts = data.held_out_labels.bincount(minlength=digits.CLASSES)
    assert counts.min() >= 34 and counts.max() <= 38


def test_standardised_images_have_three_equal_channels_of_unit_variance() -> None:
    data = digits.standardised(digits.load((8, 8), seed=0))
    assert data.train_images.shape == (1437, 3, 8, 8) and data.held_out_images.shape == (360, 3, 8, 8)
    assert torch.equal(data.train_images[:, 0], data.train_images[:, 2])
    assert data.train_images.mean().abs() < 1e-5 and abs(data.train_images.std() - 1.0) < 1e-3


@pytest.mark.parametrize(("batch_size", "expected"), [(479, 3), (500, 2), (5000, 1)])
def test_batches_are_full_and_as_many_as_announced(batch_size: int, expected: int) -> None:
    data = digits.load((16, 16), seed=0)
    sizes = [len(labels) for _, labels in digits.batches(data, batch_size, 2, seed=0)]
    assert sizes == [min(batch_size, 1437)] * (2 * expected)
    assert digits.batches_per_epoch(data, batch_size) == expected
