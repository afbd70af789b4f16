# SPDX-License-Identifier: MIT
"""The demo's strips of digits: what is on them, and how they are read back."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("sklearn")

from opswap.demo import strips
from opswap.demo.digits import Digits

_ = strips.BLANK
_DIGIT_PIXELS = 18 * 12


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _even_digits() -> tuple[Tensor, Tensor]:
    """Ten images, each of one brightness, which grows with the label."""
    labels = torch.arange(10)
    return ((labels + 1) / 10).view(10, 1, 1, 1).expand(10, 1, 8, 8), labels


def test_every_strip_has_its_digits_in_order_and_none_over_another() -> None:
    plates, labels = strips.compose(*_even_digits(), 50, _generator(0))
    assert plates.shape == (50, 3, 24, 94) and plates.dtype == torch.float32
    assert labels.shape == (50, 7) and labels.unique().tolist() == list(range(10))
    for plate, written in zip(plates[:, 0], labels, strict=True):
        plate = plate.mul(100).round()
        inked = plate > plate.min()
        assert inked.sum() == 7 * _DIGIT_PIXELS
        assert inked.any(0).sum() == 7 * 12
        brightness = plate.amax(0)[inked.any(0)].view(7, 12)
        assert (brightness == brightness[:, :1]).all()
        assert torch.equal(brightness[:, 0].argsort(stable=True), written.argsort(stable=True))


def test_plates_differ_in_place_and_colour() -> None:
    plates, _labels = strips.compose(*_even_digits(), 50, _generator(0))
    assert len(plates.amin((2, 3)).unique()) == 150
    inked = plates[:, 0] > plates[:, 0].amin((1, 2), keepdim=True)
    assert len(inked.any(1).unique(dim=0)) > 40
    assert inked[:, 0].any() and inked[:, -1].any()


def test_distortion_changes_the_digits_and_nothing_else() -> None:
    data = strips.source(seed=0)
    digits = data.train_images, data.train_labels
    (plain, labels), (distorted, same_labels) = (
        strips.compose(*digits, 20, _generator(3), d) for d in (0.0, 0.1)
    )
    assert torch.equal(labels, same_labels)
    assert not torch.equal(plain, distorted)
    torch.testing.assert_close(plain.amin((2, 3)), distorted.amin((2, 3)), rtol=0.0, atol=1e-6)
    assert (plain - distorted).abs().mean() < 0.3
    even = [strips.compose(*_even_digits(), 20, _generator(3), d)[0] for d in (0.0, 0.1)]
    torch.testing.assert_close(*even, rtol=0.0, atol=1e-5)


def test_only_training_strips_are_distorted() -> None:
    one = torch.rand(1, 1, 8, 8, generator=_generator(0)).expand(4, 1, 8, 8)
    data = Digits(one, torch.zeros(4).long(), one, torch.zeros(4).long())
    kinds = []
    for plates in (next(strips.batches(data, 1, 1, seed=0))[0], strips.held_out(data, 1, seed=0)[0]):
        ink = plates[0, 0] - plates[0, 0].min()
        kinds.append(len({round(v, 4) for v in ink.flatten().tolist()}))
    assert kinds[0] > 2 * kinds[1]


def test_strips_depend_on_nothing_but_the_seed() -> None:
    data = strips.source(seed=5)
    batches, again, other = (list(strips.batches(data, 4, 3, seed)) for seed in (1, 1, 2))
    assert len(batches) == 3
    for (plates, labels), (same_plates, same_labels) in zip(batches, again, strict=True):
        assert torch.equal(plates, same_plates) and torch.equal(labels, same_labels)
    assert not torch.equal(batches[0][0], batches[1][0])
    assert not torch.equal(batches[0][1], other[0][1])
    assert torch.equal(strips.held_out(data, 4, 1)[0], strips.held_out(data, 4, 1)[0])


def test_training_and_held_out_strips_share_no_digit() -> None:
    data = strips.source(seed=0)
    assert data.train_images.shape == (1437, 1, 8, 8)
    held_out = {image.numpy().tobytes() for image in data.held_out_images}
    assert not held_out & {image.numpy().tobytes() for image in data.train_images}
    images, _labels = _even_digits()
    told_apart = Digits(images, torch.zeros(10).long(), images, torch.ones(10).long())
    assert next(strips.batches(told_apart, 20, 1, seed=0))[1].unique().tolist() == [0]
    assert strips.held_out(told_apart, 20, seed=0)[1].unique().tolist() == [1]


def _logits(paths: list[list[int]]) -> Tensor:
    return 20.0 * F.one_hot(torch.tensor(paths), 11).transpose(1, 2).float()


def test_decode_merges_repeats_and_drops_blanks() -> None:
    paths = [[1, 1, _, 1, 2, 2], [_] * 6, [0, 9, 0, 9, 9, 9], [_, 3, _, _, 3, _]]
    assert strips.decode(_logits(paths)) == [[1, 1, 2], [], [0, 9, 0, 9], [3, 3]]


def test_ctc_loss_is_least_for_the_path_that_reads_as_written() -> None:
    path = [_, 1, _, 1, 2, 2, 3, _, 4, _, 5, 6, _, _, _, _, _, _]
    written = torch.tensor([[1, 1, 2, 3, 4, 5, 6]])
    loss = strips.ctc_loss(_logits([path]).requires_grad_(), written)
    assert 0.0 <= loss < 1e-3
    assert strips.ctc_loss(_logits([path]), written.flip(1)) > 1.0
    assert loss.requires_grad


@pytest.mark.parametrize(
    ("read", "written", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], 0),
        ([], [1, 2, 3], 3),
        ([1, 2, 3], [], 3),
        ([1, 3], [1, 2, 3], 1),
        ([1, 9, 3], [1, 2, 3], 1),
        ([2, 3, 1], [1, 2, 3], 2),
        ([1, 2, 2, 3], [1, 2, 3], 1),
    ],
)
def test_edit_distance(read: list[int], written: list[int], expected: int) -> None:
    assert strips.edit_distance(read, written) == expected


def test_accuracy_counts_whole_strips_and_digits() -> None:
    written = [[1, 2, 3, 4]] * 4
    assert strips.accuracy([[1, 2, 3, 4], [1, 2, 4], [1, 2, 3, 4], [4, 4, 4, 4]], written) == (50.0, 75.0)
    assert strips.accuracy([[9] * 18] * 4, written) == (0.0, 0.0)
