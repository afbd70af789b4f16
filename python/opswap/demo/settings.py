# SPDX-License-Identifier: MIT
"""What a run of the demo is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["DemoError", "Settings"]


class DemoError(Exception):
    """The demo could not show what it promises; the text says what and with which values."""


@dataclass(frozen=True)
class Settings:
    """
    epochs, batch_size, seed, threads: of the training; threads None leaves torch's own number.
    image_size: side of a training image in pixels.
    rounds: timed steps of every memory format; 0 for none.
    min_accuracy: percent of the held-out images that both models must get right.
    output: file of the plot.
    """

    epochs: int
    batch_size: int
    image_size: int
    seed: int
    threads: int | None
    rounds: int
    min_accuracy: float
    output: Path
