# SPDX-License-Identifier: MIT
"""The 1,797 handwritten digits of 8x8 pixels that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional as F

__all__ = ["CLASSES", "Digits", "batches", "batches_per_epoch", "load", "standardised"]

CLASSES = 10
_HELD_OUT = 360
_BRIGHTEST = 16.0


@dataclass(frozen=True)
class Digits:
    """Images (N, channels, height, width) float32 and labels (N,) int64. The two sets share no image."""

    train_images: Tensor
    train_labels: Tensor
    held_out_images: Tensor
    held_out_labels: Tensor


def load(size: tuple[int, int], seed: int) -> Digits:
    """Scale the grey images, 0 to 1, to (height, width) and hold 360 out, each digit as often as in the whole.

    Source: E. Alpaydin and C. Kaynak 1998, Optical Recognition of Handwritten Digits (the test part).
    """
    source = load_digits()
    grey = torch.from_numpy(source.images).float().unsqueeze(1) / _BRIGHTEST
    images = F.interpolate(grey, size=size, mode="bilinear")
    labels = torch.from_numpy(source.target).long()
    train, held_out = train_test_split(
        range(len(labels)), test_size=_HELD_OUT, random_state=seed, stratify=source.target
    )
    return Digits(images[train], labels[train], images[held_out], labels[held_out])


def standardised(digits: Digits) -> Digits:
    """The same in three equal channels, of mean 0 and variance 1 over the training images."""
    mean, deviation = digits.train_images.mean(), digits.train_images.std()
    train, held_out = (
        ((images - mean) / deviation).expand(-1, 3, -1, -1)
        for images in (digits.train_images, digits.held_out_images)
    )
    return Digits(train, digits.train_labels, held_out, digits.held_out_labels)


def batches(digits: Digits, batch_size: int, epochs: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled training batches, each moved by a few pixels at random; a smaller last batch is left out."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = digits.train_images, digits.train_labels
    reach = images.shape[-1] // 16
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=generator)
        for start in range(0, batches_per_epoch(digits, batch_size) * batch_size, batch_size):
            picked = order[start : start + batch_size]
            shift = torch.randint(-reach, reach + 1, (2,), generator=generator).tolist()
            yield images[picked].roll(shift, (2, 3)), labels[picked]


def batches_per_epoch(digits: Digits, batch_size: int) -> int:
    """At least one, which holds all images if batch_size is larger than their number."""
    return max(len(digits.train_labels) // batch_size, 1)
