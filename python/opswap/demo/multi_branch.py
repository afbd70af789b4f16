# SPDX-License-Identifier: MIT
"""The task: a net with twelve branches predicts twelve properties of a handwritten digit."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import opswap

from . import digits
from .formats import FormatTiming
from .settings import Settings
from .task import Outcome, Stage, Task
from .training import Learner, adam, train_close

__all__ = ["GROUPS", "MultiBranchTask", "group_loss"]

# For every group of classes the class of each digit from 0 to 9; every group has a branch and a head of its own size.
GROUPS: dict[str, tuple[int, ...]] = {
    "digit": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    "parity": (0, 1, 0, 1, 0, 1, 0, 1, 0, 1),
    "remainder by 3": (0, 1, 2, 0, 1, 2, 0, 1, 2, 0),
    "remainder by 4": (0, 1, 2, 3, 0, 1, 2, 3, 0, 1),
    "remainder by 5": (0, 1, 2, 3, 4, 0, 1, 2, 3, 4),
    "third": (0, 0, 0, 0, 1, 1, 1, 1, 2, 2),
    "prime": (0, 0, 1, 1, 0, 1, 0, 1, 0, 0),
    "square": (1, 1, 0, 0, 1, 0, 0, 0, 0, 1),
    "closed loops": (1, 0, 0, 0, 1, 0, 1, 0, 2, 1),
    "straight": (0, 1, 0, 0, 1, 0, 0, 1, 0, 0),
    "segments of a display": (4, 0, 3, 3, 2, 3, 4, 1, 5, 4),
    "letters of its name": (1, 0, 0, 2, 1, 1, 0, 2, 2, 1),
}
_CLASSES = [max(classes) + 1 for classes in GROUPS.values()]
_SIDE, _CHANNELS, _WIDTH = 32, 32, 8
_LEARNING_RATE = 5e-3
# Of a loss. Convolutions of another shape sum in another order, and every training step carries the difference on:
# in float64 it stays this small, in float32 it soon turns a maximum over to another pixel.
_TOLERANCE = 1e-9
_FULL_STEPS, _ACCURACY = 132, 85.0
_MEASURING_SECONDS = 0.25


def group_loss(output: Tensor, labels: Tensor) -> Tensor:
    """The mean over the groups of the cross entropy. Args: output: (B, sum of classes); labels: (B,), digits."""
    parts = zip(output.split(_CLASSES, 1), GROUPS.values(), strict=True)
    losses = [F.cross_entropy(part, torch.tensor(classes)[labels]) for part, classes in parts]
    return torch.stack(losses).mean()


class MultiBranchTask(Task):
    """The branches in a loop and merged, trained side by side in float64, which shows that they compute the same.

    Training steps and single images are timed in float32.
    """

    network = "Multi-branch net"
    subject = f"{len(GROUPS)} groups of classes of handwritten digits, in float64"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.steps = settings.branch_steps
        self.min_accuracy = _ACCURACY if self.steps >= _FULL_STEPS else 0.0
        self.data = digits.standardised(digits.load((_SIDE, _SIDE), settings.seed))
        torch.manual_seed(settings.seed)
        self.initial = opswap.models.multi_branch(_CLASSES, _CHANNELS, _WIDTH)
        self._nets: dict[torch.memory_format, nn.Module] = {}

    @cached_property
    def learners(self) -> list[Learner]:
        """The loop, then the merged form."""
        loop = self._learner("loop", copy.deepcopy(self.initial).double())
        return [loop, self._learner("merged", self._merged(torch.contiguous_format).double())]

    @cached_property
    def report(self) -> object:
        """Of the merged form in the contiguous format."""
        return self.learners[1].model.branches.merge_report()

    def _merged(self, memory_format: torch.memory_format) -> nn.Module:
        """A copy of `_merge`, which runs once per format."""
        if memory_format not in self._nets:
            self._nets[memory_format] = self._merge(memory_format)
        return copy.deepcopy(self._nets[memory_format])

    def _merge(self, memory_format: torch.memory_format) -> nn.Module:
        """The initial net with merged branches, measured for training batches and for single images of a format."""
        net = copy.deepcopy(self.initial).to(memory_format=memory_format)
        images = self.data.train_images[: self.settings.batch_size].contiguous(memory_format=memory_format)
        with torch.no_grad():
            features = copy.deepcopy(net).eval().backbone(images)
        net.branches = opswap.merge.branches(net.branches)
        for example in (features, features[:1]):
            net.branches.measure(example, seconds=_MEASURING_SECONDS)
        return net

    def _learner(self, name: str, model: nn.Module) -> Learner:
        return Learner(
            name, model, group_loss, steps=self.steps, learning_rate=_LEARNING_RATE, optimizer=adam
        )

    def stages(self) -> Iterator[Stage]:
        given = self.settings
        epochs = math.ceil(self.steps / digits.batches_per_epoch(self.data, given.batch_size))
        feed = islice(digits.batches(self.data, given.batch_size, epochs, given.seed), self.steps)
        feed = ((images.double(), labels) for images, labels in feed)
        done = train_close(*self.learners, feed, _TOLERANCE)
        yield Stage("training, loop and merged", self.steps, done)

    def outcome(self) -> Outcome:
        found = {learner.name: self._accuracies(learner) for learner in self.learners}
        pairs = list(zip(*(learner.losses for learner in self.learners), strict=True))
        differences = [abs(b - a) / abs(a) for a, b in pairs]
        groups = ", ".join(f"{name} {percent:.1f}" for name, percent in found["merged"].items())
        return Outcome(
            {name: accuracies["digit"] for name, accuracies in found.items()},
            [
                f"All {len(pairs)} losses are equal to {max(differences):.1g} of their value "
                f"(allowed: {_TOLERANCE:g}, since sums are computed in another order).",
                f"Merged, held-out images right in percent: {groups}.",
            ],
        )

    def _accuracies(self, learner: Learner) -> dict[str, float]:
        """Percent of the held-out images whose class is right, by group."""
        parts = learner.predict(self.data.held_out_images.double()).split(_CLASSES, 1)
        labels = self.data.held_out_labels
        return {
            name: 100.0 * (part.argmax(1) == torch.tensor(classes)[labels]).double().mean().item()
            for (name, classes), part in zip(GROUPS.items(), parts, strict=True)
        }

    def format_timings(self) -> list[FormatTiming]:
        given = self.settings
        batch = next(digits.batches(self.data, given.batch_size, 1, given.seed))
        single = batch[0][:1], batch[1][:1]
        forms = {
            "loop": lambda memory_format: copy.deepcopy(self.initial),
            "merged": self._merged,
        }
        title = f"{self.network}, {{}} {_SIDE}x{_SIDE}"
        return [
            FormatTiming(title.format(f"{len(batch[1])} images"), forms, group_loss, batch, given.rounds),
            FormatTiming(
                title.format("inference of 1 image"),
                forms,
                group_loss,
                single,
                20 * given.rounds,
                training=False,
            ),
        ]
