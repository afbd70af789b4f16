# SPDX-License-Identifier: MIT
"""Canvases of different sizes with some handwritten digits on each, and their boxes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["LARGEST", "MOST_BOXES", "STRIDE", "Sample", "compose"]

# Sides are multiples of the stride of the detector's cells.
STRIDE = 8
_SMALLEST, LARGEST = 48, 96
MOST_BOXES = 6
# A digit is wider than a cell, so that no cell has the centres of two digits that do not overlap.
_DIGIT_SIZES = (12, 16, 20)
_TRIES = 40

Sample = tuple[Tensor, dict[str, Any]]


def compose(images: Tensor, labels: Tensor, count: int, seed: int) -> list[Sample]:
    """Put up to six digits on each of `count` canvases, none over another.

    Args: images: (N, 1, h, w), from 0 to 1; labels: (N,).
    Returns: canvases (1, H, W) with sides of 48 to 96 pixels, and dicts of boxes (n, 4) as (x1, y1, x2, y2) and
        labels (n,), with n from 0 to 6.
    """
    generator = torch.Generator().manual_seed(seed)
    scaled = {
        size: F.interpolate(images, (size, size), mode="bilinear", align_corners=False)
        for size in _DIGIT_SIZES
    }
    return [_canvas(scaled, labels, generator) for _ in range(count)]


def _canvas(scaled: dict[int, Tensor], labels: Tensor, generator: torch.Generator) -> Sample:
    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    height, width = (STRIDE * draw(_SMALLEST // STRIDE, LARGEST // STRIDE + 1) for _ in range(2))
    canvas = 0.2 * torch.rand((1, height, width), generator=generator)
    wanted = draw(0, MOST_BOXES + 1)
    boxes: list[tuple[int, int, int, int]] = []
    chosen: list[int] = []
    for _ in range(_TRIES):
        if len(boxes) == wanted:
            break
        size, index = _DIGIT_SIZES[draw(0, len(_DIGIT_SIZES))], draw(0, len(labels))
        top, left = draw(0, height - size + 1), draw(0, width - size + 1)
        box = (left, top, left + size, top + size)
        if any(map(_overlap, boxes, [box] * len(boxes))):
            continue
        canvas[:, top : top + size, left : left + size] += 0.8 * scaled[size][index]
        boxes.append(box)
        chosen.append(index)
    target = {"boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), "labels": labels[chosen]}
    return canvas, target


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
