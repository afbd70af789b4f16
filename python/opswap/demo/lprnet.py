# SPDX-License-Identifier: MIT
"""The task: LPRNet reads strips of seven handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

import opswap

from . import digits, strips
from .compared import Compared
from .formats import FormatTiming, stock_and_swapped
from .settings import Settings
from .task import Outcome, Stage, Task
from .training import Learner, adam

__all__ = ["LPRNetTask"]

_LEARNING_RATE = 3e-3
_FULL_ACCURACY = 90.0
# Of the longer training: stronger distortions, and a mean of about the last 50 models.
_FULL_DISTORTION, _FULL_DECAY = 0.15, 0.98
_HELD_OUT = 400


class LPRNetTask(Task):
    """Stock and optimized LPRNet side by side for a quarter of the steps; then the optimized one goes on alone."""

    network = "LPRNet"
    subject = "strips of seven handwritten digits"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.min_accuracy = _FULL_ACCURACY if settings.full else 0.0
        self.steps = settings.lprnet_steps
        self.data = strips.source(settings.seed)
        torch.manual_seed(settings.seed)
        self.initial = opswap.models.lprnet(digits.CLASSES + 1, dropout=0.0)
        make = partial(
            Learner, criterion=strips.ctc_loss, steps=self.steps, learning_rate=_LEARNING_RATE, optimizer=adam
        )
        self.compared = Compared(self.initial, make)
        self.learners, self.report = self.compared.learners, self.compared.report

    def stages(self) -> Iterator[Stage]:
        given = self.settings
        stronger = {"distortion": _FULL_DISTORTION} if given.full else {}
        feed = strips.batches(self.data, given.batch_size, self.steps, given.seed, **stronger)
        if given.full:
            self.compared.optimized.keep_average(_FULL_DECAY)
        yield from self.compared.stages(feed, self.steps, given.compared_steps, given.lprnet_stock_steps)

    def outcome(self) -> Outcome:
        plates, labels = strips.held_out(self.data, _HELD_OUT, self.settings.seed)
        alone = self.compared.optimized
        read = strips.decode(torch.cat([alone.predict(part) for part in plates.split(_HELD_OUT // 4)]))
        whole, digit = strips.accuracy(read, labels.tolist())
        return Outcome(
            {alone.name: whole},
            [
                self.compared.note() + " The stock MaxPool3d refuses channels_last.",
                f"Held-out strips read: {whole:.1f} % of {_HELD_OUT} without an error, {digit:.1f} % of their digits.",
            ],
        )

    def format_timings(self) -> list[FormatTiming]:
        given = self.settings
        batch = next(strips.batches(self.data, given.batch_size, 1, given.seed))
        title = f"{self.network}, {given.batch_size} strips 24x94"
        return [
            FormatTiming(
                title,
                stock_and_swapped(self.initial),
                strips.ctc_loss,
                batch,
                given.rounds,
                first_in_channels_last=False,
            )
        ]
