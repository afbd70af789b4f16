# SPDX-License-Identifier: MIT
"""Strips of seven handwritten digits on a plate of 24 x 94 pixels, and reading them back from CTC logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .digits import CLASSES, Digits, load

__all__ = [
    "BLANK",
    "LENGTH",
    "accuracy",
    "batches",
    "compose",
    "ctc_loss",
    "decode",
    "edit_distance",
    "held_out",
    "source",
]

LENGTH = 7
BLANK = CLASSES
_HEIGHT, _WIDTH = 24, 94
_DIGIT_HEIGHT, _DIGIT_WIDTH = 18, 12
# Maps brightness 0 to 1 to about mean 0 and variance 1.
_MEAN, _DEVIATION = 0.4, 0.3


def source(seed: int) -> Digits:
    """The digits that strips are made of: (N, 1, 8, 8), brightness 0 to 1."""
    return load((8, 8), seed)


def compose(
    images: Tensor, labels: Tensor, count: int, generator: torch.Generator, distortion: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Put seven random digits side by side, none over another, on each of `count` plates.

    Gaps and heights are random, and each plate has its own dark ground and bright ink.

    Args:
        images: (N, 1, H, W), 0 to 1; scaled to 18 x 12 pixels.
        labels: (N,).
        distortion: standard deviation of every entry of the linear map that is applied to a digit, about 1 or 0.
    Returns: strips (count, 3, 24, 94), standardised; labels (count, 7), left to right.
    """
    picked = torch.randint(len(labels), (count, LENGTH), generator=generator)
    digits = _distorted(images[picked.flatten()], distortion, generator)
    ink = torch.zeros(count, _HEIGHT * _WIDTH)
    ink.scatter_(1, _positions(count, generator), digits.view(count, -1))
    ground = 0.3 * torch.rand(count, 3, 1, 1, generator=generator)
    colour = 0.7 + 0.3 * torch.rand(count, 3, 1, 1, generator=generator)
    plates = torch.lerp(ground, colour, ink.view(count, 1, _HEIGHT, _WIDTH))
    return (plates - _MEAN) / _DEVIATION, labels[picked]


def _distorted(images: Tensor, distortion: float, generator: torch.Generator) -> Tensor:
    """(N, 1, 18, 12): each image scaled, and turned, sheared and stretched about its centre at random."""
    count = len(images)
    maps = torch.eye(2, 3) + distortion * F.pad(torch.randn(count, 2, 2, generator=generator), (0, 1))
    grid = F.affine_grid(maps, [count, 1, _DIGIT_HEIGHT, _DIGIT_WIDTH], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _positions(count: int, generator: torch.Generator) -> Tensor:
    """(count, 7 * 18 * 12): index into the flat plate of every pixel of every digit."""
    slack = _WIDTH - LENGTH * _DIGIT_WIDTH
    gaps = torch.randint(slack + 1, (count, LENGTH), generator=generator).sort(1).values
    left = gaps + _DIGIT_WIDTH * torch.arange(LENGTH)
    top = torch.randint(_HEIGHT - _DIGIT_HEIGHT + 1, (count, LENGTH), generator=generator)
    rows = top[:, :, None, None] + torch.arange(_DIGIT_HEIGHT)[:, None]
    columns = left[:, :, None, None] + torch.arange(_DIGIT_WIDTH)
    return (rows * _WIDTH + columns).flatten(1)


def batches(
    digits: Digits, batch_size: int, steps: int, seed: int, distortion: float = 0.1
) -> Iterator[tuple[Tensor, Tensor]]:
    """Strips of training digits, new ones, newly distorted, in every batch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield compose(digits.train_images, digits.train_labels, batch_size, generator, distortion)


def held_out(digits: Digits, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Strips of digits that no training strip has."""
    generator = torch.Generator().manual_seed(seed + 1)
    return compose(digits.held_out_images, digits.held_out_labels, count, generator)


def ctc_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """CTC loss of logits (N, 11, T) against labels (N, 7), over the labels' length, the mean over N.

    Source: Graves et al. 2006, Connectionist Temporal Classification.
    """
    count, _, time = logits.shape
    log_probabilities = logits.permute(2, 0, 1).log_softmax(2)
    return F.ctc_loss(
        log_probabilities, labels, torch.full((count,), time), torch.full((count,), LENGTH), blank=BLANK
    )


def decode(logits: Tensor) -> list[list[int]]:
    """Read logits (N, 11, T) greedily: the best class a column, repeats merged, blanks dropped."""
    best = logits.argmax(1)
    kept = best != BLANK
    kept[:, 1:] &= best[:, 1:] != best[:, :-1]
    return [row[keep].tolist() for row, keep in zip(best, kept, strict=True)]


def accuracy(read: Sequence[Sequence[int]], written: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Percent of the strips read without a fault; percent of the digits right, 100 less those to be edited."""
    pairs = list(zip(read, written, strict=True))
    whole = sum(list(r) == list(w) for r, w in pairs)
    edits = sum(edit_distance(r, w) for r, w in pairs)
    return 100.0 * whole / len(pairs), 100.0 * max(0.0, 1.0 - edits / sum(map(len, written)))


def edit_distance(read: Sequence[int], written: Sequence[int]) -> int:
    """Fewest insertions, deletions and substitutions between the two. Source: Levenshtein 1966."""
    distances = list(range(len(written) + 1))
    for i, symbol in enumerate(read, 1):
        diagonal, distances[0] = distances[0], i
        for j, expected in enumerate(written, 1):
            diagonal, distances[j] = (
                distances[j],
                min(distances[j] + 1, distances[j - 1] + 1, diagonal + (symbol != expected)),
            )
    return distances[-1]
