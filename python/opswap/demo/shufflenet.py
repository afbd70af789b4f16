# SPDX-License-Identifier: MIT
"""The task: ShuffleNetV2 classifies handwritten digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn import functional as F

import opswap

from . import digits
from .compared import Compared
from .formats import FormatTiming, stock_and_swapped
from .settings import Settings
from .task import Outcome, Stage, Task
from .training import Learner

__all__ = ["ShuffleNetTask"]

_LEARNING_RATE = 0.1
_HALVES = (torch.bfloat16, torch.float16)


class ShuffleNetTask(Task):
    """Stock and optimized ShuffleNetV2 x0.5, trained side by side to the end; in full, in 16 bits too."""

    network = "ShuffleNetV2 x0.5"
    subject = "handwritten digits"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.min_accuracy = settings.min_accuracy
        size = settings.image_size
        self.data = digits.standardised(digits.load((size, size), settings.seed))
        self.steps = settings.epochs * digits.batches_per_epoch(self.data, settings.batch_size)
        torch.manual_seed(settings.seed)
        self.initial = opswap.models.shufflenet_v2_x0_5(num_classes=digits.CLASSES)
        make = partial(Learner, criterion=F.cross_entropy, steps=self.steps, learning_rate=_LEARNING_RATE)
        self.compared = Compared(self.initial, make, _HALVES if settings.full else ())
        self.learners, self.report = self.compared.learners, self.compared.report

    def stages(self) -> Iterator[Stage]:
        given = self.settings
        feed = digits.batches(self.data, given.batch_size, given.epochs, given.seed)
        yield from self.compared.stages(feed, self.steps, given.compared_steps, self.steps)

    def outcome(self) -> Outcome:
        trained = self.compared.stock, self.compared.optimized, *self.compared.halves
        return Outcome({learner.name: self._accuracy(learner) for learner in trained}, [self.compared.note()])

    def _accuracy(self, learner: Learner) -> float:
        predicted = learner.predict(self.data.held_out_images).argmax(1)
        return 100.0 * (predicted == self.data.held_out_labels).double().mean().item()

    def format_timings(self) -> list[FormatTiming]:
        given = self.settings
        size, loss = given.image_size, F.cross_entropy
        batch = next(digits.batches(self.data, given.batch_size, 1, given.seed))
        title = f"{self.network}, {len(batch[1])} images {size}x{size}"
        large = opswap.models.shufflenet_v2_x1_0(num_classes=1000)
        large_batch = torch.randn(8, 3, 224, 224), torch.randint(1000, (8,))
        return [
            FormatTiming(title, stock_and_swapped(self.initial), loss, batch, given.rounds),
            FormatTiming(
                "ShuffleNetV2 x1.0, 8 images 224x224",
                stock_and_swapped(large),
                loss,
                large_batch,
                given.rounds,
            ),
        ]
