# SPDX-License-Identifier: MIT
"""The task: ShuffleNetV2 tells handwritten digits apart."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

import opswap

from . import digits
from .formats import FormatTiming
from .settings import Settings
from .training import Learner, check_equal_parameters, swap_exactly, train_equal

__all__ = ["ShuffleNetTask"]

_LEARNING_RATE = 0.1


class ShuffleNetTask:
    """Stock and swapped ShuffleNetV2 x0.5 with equal weights, and the digits that both are to learn."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.data = digits.load(settings.image_size, settings.seed)
        self.steps = settings.epochs * digits.batches_per_epoch(self.data, settings.batch_size)
        torch.manual_seed(settings.seed)
        self.initial = opswap.models.shufflenet_v2_x0_5(num_classes=digits.CLASSES)
        self.stock = self._learner("stock", copy.deepcopy(self.initial))
        self.swapped = self._learner("swapped", swap_exactly(copy.deepcopy(self.initial)))
        self.report = opswap.report(self.swapped.model)

    def _learner(self, name: str, model: nn.Module) -> Learner:
        return Learner(name, model, F.cross_entropy, steps=self.steps, learning_rate=_LEARNING_RATE)

    def train(self) -> Iterator[int]:
        """Train both on the same batches; yields the steps done, raises DemoError at a difference."""
        given = self.settings
        feed = digits.batches(self.data, given.batch_size, given.epochs, given.seed)
        yield from train_equal(self.stock, self.swapped, feed)

    def compared_tensors(self) -> int:
        """Number of parameters and buffers, all equal after training; DemoError where one is not."""
        return check_equal_parameters(self.stock.model, self.swapped.model)

    def accuracy(self, learner: Learner) -> float:
        """Percent of the held-out images that the model tells right."""
        learner.model.eval()
        with torch.inference_mode():
            predicted = learner.model(self.data.held_out_images).argmax(1)
        learner.model.train()
        return 100.0 * (predicted == self.data.held_out_labels).double().mean().item()

    def format_timings(self) -> list[FormatTiming]:
        """What to time in both memory formats: this training, and ShuffleNetV2 x1.0 on larger images."""
        given = self.settings
        size = given.image_size
        batch = next(digits.batches(self.data, given.batch_size, 1, given.seed))
        large_model = opswap.models.shufflenet_v2_x1_0(num_classes=1000)
        large_batch = torch.randn(8, 3, 224, 224), torch.randint(1000, (8,))
        return [
            FormatTiming(f"x0.5, {len(batch[1])} images {size}x{size}", self.initial, batch, given.rounds),
            FormatTiming("x1.0, 8 images 224x224", large_model, large_batch, given.rounds),
        ]
