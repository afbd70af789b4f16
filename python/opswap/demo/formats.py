# SPDX-License-Identifier: MIT
"""How long a training step takes: stock and swapped, contiguous and channels_last."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import torch
from torch import nn

from .training import Batch, Criterion, Learner, Spread, in_turn, swap_exactly

__all__ = ["FormatTiming"]

_WARM_UP = 2
_FEWEST_ROUNDS = 3
_LONGEST_SECONDS = 20.0
_LAYOUTS = (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last))


class FormatTiming:
    """Four copies of a model that step in turn on one batch, `rounds` times or fewer on a slow machine.

    Three where `stock_in_channels_last` is False, for a stock model that refuses that format. Only their times are of
    interest: in channels_last, convolutions of stock and swapped may round differently, since a stock shuffle
    hands its result on in the contiguous format.
    """

    def __init__(
        self,
        title: str,
        model: nn.Module,
        criterion: Criterion,
        batch: Batch,
        rounds: int,
        *,
        stock_in_channels_last: bool = True,
    ) -> None:
        self.title = title
        self.steps = _WARM_UP + rounds
        self._batch = batch
        self._learners = [
            Learner(
                f"{name} {layout}",
                prepare(copy.deepcopy(model)),
                criterion,
                steps=self.steps,
                learning_rate=1e-3,
                memory_format=memory_format,
            )
            for name, prepare in (("stock", lambda same: same), ("swapped", swap_exactly))
            for layout, memory_format in _LAYOUTS
            if stock_in_channels_last or (name, layout) != ("stock", "channels_last")
        ]

    def run(self) -> Iterator[int]:
        """Yields the number of steps that every copy has done; ends early when the time is used up."""
        deadline = time.monotonic() + _LONGEST_SECONDS
        for done in in_turn(self._learners, [self._batch] * self.steps):
            yield done
            if done >= _WARM_UP + _FEWEST_ROUNDS and time.monotonic() > deadline:
                return

    def spreads(self) -> dict[str, Spread]:
        """By copy, "stock contiguous" first."""
        return {learner.name: learner.spread(skip=_WARM_UP) for learner in self._learners}
