# SPDX-License-Identifier: MIT
"""The task: LPRNet reads strips of seven handwritten digits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn

import opswap

from . import digits, strips
from .formats import FormatTiming, stock_and_swapped
from .settings import Settings
from .task import Outcome, Stage, Task
from .training import Learner, adam, check_equal_parameters, swap_exactly, train, train_equal

__all__ = ["LPRNetTask"]

_LEARNING_RATE = 3e-3
_FULL_ACCURACY = 90.0
# Of the longer training: stronger distortions, and a mean of about the last 50 models.
_FULL_DISTORTION, _FULL_DECAY = 0.15, 0.98
_HELD_OUT = 400


class LPRNetTask(Task):
    """Stock and swapped LPRNet for a few equal steps; then the swapped one goes on in channels_last."""

    network = "LPRNet"
    subject = "strips of seven handwritten digits"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.min_accuracy = _FULL_ACCURACY if settings.full else 0.0
        self.steps = settings.lprnet_steps
        self.data = strips.source(settings.seed)
        torch.manual_seed(settings.seed)
        self.initial = opswap.models.lprnet(digits.CLASSES + 1, dropout=0.0)
        self.stock = self._learner("stock", copy.deepcopy(self.initial))
        self.swapped = self._learner("swapped", swap_exactly(copy.deepcopy(self.initial)))
        self.learners = [self.stock, self.swapped]
        self.report = opswap.report(self.swapped.model)
        self._equal_tensors = 0

    def _learner(self, name: str, model: nn.Module) -> Learner:
        return Learner(
            name,
            model,
            strips.ctc_loss,
            steps=self.steps,
            learning_rate=_LEARNING_RATE,
            optimizer=adam,
        )

    def stages(self) -> Iterator[Stage]:
        given = self.settings
        stronger = {"distortion": _FULL_DISTORTION} if given.full else {}
        feed = strips.batches(self.data, given.batch_size, self.steps, given.seed, **stronger)
        compared = given.compared_steps
        both = train_equal(self.stock, self.swapped, islice(feed, compared))
        yield Stage("training, stock and swapped", compared, both)
        self._equal_tensors = check_equal_parameters(self.stock.model, self.swapped.model)
        alone = self.swapped.going_on("swapped channels_last", torch.channels_last)
        if given.full:
            alone.keep_average(_FULL_DECAY)
        self.learners.append(alone)
        yield Stage("training, swapped goes on", self.steps - compared, train(alone, feed))

    def outcome(self) -> Outcome:
        plates, labels = strips.held_out(self.data, _HELD_OUT, self.settings.seed)
        alone = self.learners[-1]
        read = strips.decode(torch.cat([alone.predict(part) for part in plates.split(_HELD_OUT // 4)]))
        whole, digit = strips.accuracy(read, labels.tolist())
        compared = self.settings.compared_steps
        return Outcome(
            {alone.name: whole},
            [
                f"Equal bit for bit: the losses of the first {compared} steps, then all {self._equal_tensors} "
                "parameters and buffers. The stock MaxPool3d refuses channels_last.",
                f"Held-out strips read: {whole:.1f} % of {_HELD_OUT} without a fault, {digit:.1f} % of their digits.",
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
