# SPDX-License-Identifier: MIT
"""The demo's detector: what is found in it, equal losses, one graph, and what padding changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import opswap

pytest.importorskip("rich")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from demo_settings import settings
from opswap.demo import DemoError, canvases, detection, detector, digits, run
from opswap.demo.detection import DEPENDENT, FIXED, Detection, padding_effects
from opswap.demo.detector import BACKGROUND, Batch, Detector, boxes_of, data_dependent_loss, fixed_loss

pytestmark = pytest.mark.usefixtures("one_thread")

_STRIDE = canvases.STRIDE
_COLLATE = opswap.shapes.collate_fixed(canvases.LARGEST, max_boxes=canvases.MOST_BOXES)


@pytest.fixture(scope="module")
def samples() -> list[canvases.Sample]:
    data = digits.load((8, 8), 0)
    return canvases.compose(data.train_images, data.train_labels, 24, 3)


@pytest.fixture
def net() -> Detector:
    torch.manual_seed(1)
    return Detector(4)


@pytest.fixture
def part(tmp_path: Path) -> Detection:
    return Detection(settings(tmp_path, only="detection"))


def test_canvases(samples: list[canvases.Sample]) -> None:
    counts = {len(target["boxes"]) for _, target in samples}
    assert len({image.shape for image, _ in samples}) > 10 and 0 in counts and max(counts) <= 6
    for image, target in samples:
        _, height, width = image.shape
        assert (
            height % _STRIDE == width % _STRIDE == 0 and 48 <= min(height, width) <= max(height, width) <= 96
        )
        boxes = target["boxes"]
        assert len(boxes) == len(target["labels"]) and (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] <= torch.tensor([width, height])).all()
        cells = ((boxes[:, :2] + boxes[:, 2:]) / 2 // _STRIDE).long().tolist()
        assert len(set(map(tuple, cells))) == len(boxes), "two digits in a cell"


def test_boxes_of_cells() -> None:
    output = torch.zeros(4, 2, 3)
    assert boxes_of(output)[:, 1, 2].tolist() == [12.0, 4.0, 28.0, 20.0]
    output[:, 1, 2] = torch.tensor([0.5, -0.5, 0.0, torch.log(torch.tensor(2.0))])
    torch.testing.assert_close(boxes_of(output)[:, 1, 2], torch.tensor([16.0, -8.0, 32.0, 24.0]))


@pytest.mark.parametrize("count", [1, 6, 24])
def test_both_losses_and_their_gradients_are_equal(
    samples: list[canvases.Sample], net: Detector, count: int
) -> None:
    chosen = samples[:count]
    net.double()
    wide = [(image.double(), {**t, "boxes": t["boxes"].double()}) for image, t in chosen]
    losses = (
        data_dependent_loss(net, *zip(*wide, strict=True)),
        fixed_loss(net, Batch.of(*_COLLATE(chosen)).double()),
    )
    gradients = [torch.autograd.grad(loss, list(net.parameters())) for loss in losses]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-9, atol=0)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-12)


def test_equal_in_float32_and_without_any_box(samples: list[canvases.Sample], net: Detector) -> None:
    empty = [s for s in samples if not len(s[1]["boxes"])]
    assert empty
    for chosen in (samples, empty):
        first = data_dependent_loss(net, *zip(*chosen, strict=True))
        second = fixed_loss(net, Batch.of(*_COLLATE(chosen)))
        torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-6)


def _line_of(text: str) -> int:
    lines = Path(detector.__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line]
    return number


def test_the_lines_are_found_and_gone_after_the_rewrite(part: Detection) -> None:
    part.find()
    dependent, fixed = (form.report for form in part.forms)
    found = {(s.status, s.line) for s in dependent.findings if s.file == detector.__file__}
    wanted = {
        ("loop", "for box, label in zip("),
        ("size", ".long().tolist()"),
        ("branch", "if positive.any()"),
        ("size", "torch.nonzero(positive"),
        ("size", "cell_box[:, positive]"),
    }
    assert found == {(status, _line_of(text)) for status, text in wanted}
    (of_inputs,) = [s for s in dependent.findings if s.status == "input"]
    assert len(of_inputs.sizes) > 5 and dependent.summary["graphs"] > 5
    assert not fixed.findings and fixed.summary["graphs"] == 1
    assert len(fixed.inputs[""].shapes) == 1, "one shape a step"


def test_both_forms_train_alike(part: Detection) -> None:
    assert list(part.train()) == [1, 2, 3, 4]
    first, second = (form.losses for form in part.forms)
    assert first == pytest.approx(second, rel=1e-6) and first[-1] < first[0]
    assert "All 4 losses are equal" in part.notes[0]


def test_losses_that_differ_stop_the_demo(part: Detection, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = opswap.shapes.losses.giou
    monkeypatch.setattr(opswap.shapes.losses, "giou", lambda *a, **k: stock(*a, **k) * 1.0001)
    with pytest.raises(DemoError, match=r"losses of step \d differ by more than 1e-06"):
        list(part.train())


def test_sizes_that_still_depend_on_data_stop_the_demo(
    part: Detection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dependent(net: Detector, batch: Batch) -> Tensor:
        return fixed_loss(net, batch) + 0 * batch.boxes[batch.valid].sum()

    monkeypatch.setattr(detection, "fixed_loss", dependent)
    with pytest.raises(DemoError, match=r"shapes\.detect found"):
        part.find()


def test_what_padding_changes(samples: list[canvases.Sample], net: Detector) -> None:
    batch = Batch.of(*_COLLATE(samples))
    found = padding_effects(net, batch)
    assert 0.2 < found.share < 0.9 and found.mean > 0.01 and found.variance > 0.01
    assert found.border > 1e-3 and found.inner == 0
    # What a masked detector computes is what it computes of the image alone; without a mask the border differs.
    for index, (image, _) in enumerate(samples):
        height, width = (side // _STRIDE for side in image.shape[1:])
        alone = net(image[None])[0]
        masked = net(batch.images, batch.inside)[index, :, :height, :width]
        torch.testing.assert_close(masked, alone, rtol=1e-4, atol=1e-5)
        plain = net(batch.images)[index, :, :height, :width]
        torch.testing.assert_close(plain[:, :-1, :-1], alone[:, :-1, :-1], rtol=1e-4, atol=1e-5)


def test_batch_norm_counts_padding(samples: list[canvases.Sample], net: Detector) -> None:
    """The figures are those of torch's own BatchNorm in training."""
    batch = Batch.of(*_COLLATE(samples))
    features = net.convs[0](batch.images).detach()
    own = features.movedim(1, -1)[batch.inside[0]].T[None]
    norms = []
    for values in (features.flatten(2), own):
        norm = torch.nn.BatchNorm1d(features.shape[1], momentum=1.0)
        norm(values)
        norms.append(norm)
    mean = ((norms[0].running_mean - norms[1].running_mean) / norms[1].running_var.sqrt()).abs().max()
    variance = (norms[0].running_var / norms[1].running_var - 1).abs().max()
    found = padding_effects(net, batch)
    assert found.mean == pytest.approx(mean.item(), rel=1e-3)
    assert found.variance == pytest.approx(variance.item(), rel=1e-3)


def test_the_part_in_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a code generator, which the demo says and does without."""

    def no_code(function: object, **options: object) -> object:
        return stock(function, **options) if "backend" in options else _refuse

    def _refuse(*arguments: object) -> None:
        raise OSError("no compiler")

    stock = torch.compile
    monkeypatch.setattr(torch, "compile", no_code)
    run(settings(tmp_path, only="detection", detection_steps=2, rounds=2))
    printed = " ".join(capsys.readouterr().out.split())
    assert "no shape depends on data" in printed and "torch.nonzero(positive, as_tuple=True)" in printed
    graphs = re.search(
        r"builds (\d+) graphs for 4 batches of different sizes, and 1 for those of a fixed size", printed
    )
    assert graphs is not None and int(graphs[1]) >= 4
    assert "generates no code here (OSError)" in printed and "What padding changes" in printed
    for form in (DEPENDENT, FIXED, "fixed, compiled"):
        assert re.search(rf"{form} (\d+ )?[\d.]+ [\d.]+-[\d.]+ [\d.]+x", printed), form
    assert (tmp_path / "plot").read_bytes().startswith(b"\x89PNG") and "ShuffleNet" not in printed


def test_the_class_of_background_is_no_digit(net: Detector) -> None:
    assert net(torch.zeros(1, 1, 48, 56)).shape == (1, BACKGROUND + 1 + 4, 6, 7)
    assert F.one_hot(torch.tensor(BACKGROUND)).shape == (11,)
