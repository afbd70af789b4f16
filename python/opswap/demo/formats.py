# SPDX-License-Identifier: MIT
"""How long a training step, or an inference, takes: the forms of a model, contiguous and channels_last."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import torch
from torch import nn

import opswap
from opswap._timing import Spread

from .training import Batch, Criterion, Learner, in_turn, swap_exactly

__all__ = ["FormatTiming", "Forms", "stock_and_swapped"]

# What makes each form of a model for a memory format; the first is what the others are compared with.
Forms = Mapping[str, Callable[[torch.memory_format], nn.Module]]

_WARM_UP = 2
_FEWEST_ROUNDS = 3
_LONGEST_SECONDS = 20.0
_LAYOUTS = (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last))


def stock_and_swapped(model: nn.Module) -> Forms:
    """Copies of a model as it is, swapped by the rules that are bit-equal, and by all rules."""
    return {
        "stock": lambda memory_format: copy.deepcopy(model),
        "exact": lambda memory_format: swap_exactly(copy.deepcopy(model)),
        "swapped": lambda memory_format: opswap.swap(copy.deepcopy(model), strict=True),
    }


class FormatTiming:
    """Forms of a model in two formats that work in turn on one batch, `rounds` times or fewer on a slow machine.

    The first form in one only if `first_in_channels_last` is False, for a model that refuses channels_last. If
    `training` is False, inference is timed. Only the times are of interest: in channels_last, convolutions of stock
    and swapped may round differently, since a stock shuffle returns a contiguous tensor.
    """

    def __init__(
        self,
        title: str,
        forms: Forms,
        criterion: Criterion,
        batch: Batch,
        rounds: int,
        *,
        first_in_channels_last: bool = True,
        training: bool = True,
    ) -> None:
        self.title = title
        self.steps = _WARM_UP + rounds
        self._forms, self._criterion, self._batch = forms, criterion, batch
        self._first_in_channels_last, self._training = first_in_channels_last, training

    @cached_property
    def _learners(self) -> list[Learner]:
        first = next(iter(self._forms))
        learners = [
            Learner(
                f"{name} {layout}",
                make(memory_format),
                self._criterion,
                steps=self.steps,
                learning_rate=1e-3,
                memory_format=memory_format,
            )
            for name, make in self._forms.items()
            for layout, memory_format in _LAYOUTS
            if self._first_in_channels_last or (name, layout) != (first, "channels_last")
        ]
        for learner in learners:
            learner.model.train(self._training)
        return learners

    def run(self) -> Iterator[int]:
        """Yields the number of rounds that every copy has done; ends early when the time is used up."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        turn = Learner.step if self._training else Learner.infer
        for done in in_turn(self._learners, [self._batch] * self.steps, turn):
            yield done
            if done >= _WARM_UP + _FEWEST_ROUNDS and time.monotonic() > deadline:
                return

    def spreads(self) -> dict[str, Spread]:
        """By copy, the first form in contiguous memory first."""
        return {learner.name: learner.spread(skip=_WARM_UP) for learner in self._learners}
