# SPDX-License-Identifier: MIT
"""The options of a run of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["DemoError", "Settings"]

_STEPS, _FULL_STEPS = 200, 1200


class DemoError(Exception):
    """The demo could not show what it promises; the text has what failed, with the values."""


@dataclass(frozen=True)
class Settings:
    """
    only: "shufflenet", "lprnet", "multi_branch", "detection" or "ddp"; None for all but "ddp".
    batch_size, seed, threads: of every training; threads None leaves torch's own number.
    rounds: timed steps of every memory format; 0 for none.
    output: file of the plot. json: file of the losses, accuracies and times; "-" for standard output, None for none.
    epochs, image_size: ShuffleNetV2's passes over the images and their side in pixels.
    min_accuracy: percent of the held-out images that ShuffleNetV2, stock and swapped, must get right.
    steps: LPRNet's training steps; None for as many as the demo, or the full demo, is meant to have.
    compared_steps: how many steps, fewer than LPRNet's, the copies with bit-equal rules train beside the stock ones.
    branch_steps: training steps of the multi-branch net. detection_steps: of both forms of the detector.
    ddp_steps: timed steps on two processes.
    verbose: print the whole report of each swap and merge.
    full: train ShuffleNetV2 in 16 bits too, and LPRNet longer; fail unless it reads nine in ten held-out strips.

    Raises: ValueError if two of them contradict each other.
    """

    only: str | None
    batch_size: int
    seed: int
    threads: int | None
    rounds: int
    output: Path
    epochs: int
    image_size: int
    min_accuracy: float
    steps: int | None
    compared_steps: int
    full: bool
    branch_steps: int
    detection_steps: int
    json: Path | None = None
    verbose: bool = False
    ddp_steps: int = 20

    def __post_init__(self) -> None:
        if self.full and self.only not in (None, "shufflenet", "lprnet"):
            raise ValueError(f"full is for ShuffleNetV2 and LPRNet, not for {self.only!r}")
        if self.compared_steps >= self.lprnet_steps:
            raise ValueError(
                f"stock LPRNet and the copy with bit-equal rules are compared in {self.compared_steps} of "
                f"{self.lprnet_steps} steps, which leaves none for the others"
            )

    @property
    def lprnet_steps(self) -> int:
        """`steps`, or what the demo is meant to have."""
        return self.steps or (_FULL_STEPS if self.full else _STEPS)

    @property
    def lprnet_stock_steps(self) -> int:
        """How many steps the stock LPRNet trains, which is slow: a quarter, and at least those compared."""
        return max(self.compared_steps, self.lprnet_steps // 4)
