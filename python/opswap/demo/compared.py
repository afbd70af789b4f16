# SPDX-License-Identifier: MIT
"""Stock, the bit-equal swap and opswap.optimize, trained on the same batches from the same weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
from torch import nn

import opswap
from opswap._table import short_name

from .task import Stage
from .training import (
    Batch,
    Learner,
    check_equal_parameters,
    check_finite,
    in_turn,
    optimized,
    swap_exactly,
    train_equal,
)

__all__ = ["Compared"]


class Compared:
    """Three copies of a model.

    stock: as it is. exact: with the rules that are bit-equal, for the first steps only. optimized: what a user would
    run, with all rules and in the memory format that opswap.optimize chose. Memory is reused for all three, since
    optimize sets that for the process. halves: the same in each of `dtypes`, of 16 bits, under autocast.
    """

    def __init__(
        self, initial: nn.Module, make: Callable[..., Learner], dtypes: Sequence[torch.dtype] = ()
    ) -> None:
        """Args: make: a `Learner` of everything but its name, model, memory format and dtype."""

        def make_optimized(name: str, dtype: torch.dtype = torch.float32) -> Learner:
            model, memory_format = optimized(copy.deepcopy(initial), dtype)
            return make(name, model, memory_format=memory_format, dtype=dtype)

        self.stock = make("stock", copy.deepcopy(initial))
        self.exact = make("exact", swap_exactly(copy.deepcopy(initial)))
        self.optimized = make_optimized("optimized")
        self.halves = [make_optimized(short_name(dtype), dtype) for dtype in dtypes]
        self.learners = [self.stock, self.exact, self.optimized, *self.halves]
        self.report = opswap.report(self.optimized.model)
        self.equal_tensors = 0

    def stages(self, feed: Iterator[Batch], steps: int, compared: int, stock_steps: int) -> Iterator[Stage]:
        """All for `compared` steps, then without exact, stock up to `stock_steps` and the others to the end.

        Raises: DemoError if stock and exact differ, or if a loss of optimized is not finite.
        """
        compared = min(compared, steps)
        ours = (self.optimized, *self.halves)
        names = ", ".join(learner.name for learner in ours)
        equal = train_equal(self.stock, self.exact, islice(feed, compared), *ours)
        yield Stage(f"training stock, exact, {names}", compared, equal)
        self.equal_tensors = check_equal_parameters(self.stock.model, self.exact.model)
        both = stock_steps - compared
        if both > 0:
            both_kinds = in_turn((self.stock, *ours), islice(feed, both))
            yield Stage(f"training stock, {names}", both, both_kinds)
        rest = steps - max(stock_steps, compared)
        if rest > 0:
            yield Stage(f"training {names}", rest, in_turn(ours, feed))
        for learner in ours:
            check_finite(learner)

    def note(self) -> str:
        """What was proven."""
        steps = len(self.exact.losses)
        return (
            f"Equal bit for bit, stock and exact: the losses of the first {steps} steps, then all "
            f"{self.equal_tensors} parameters and buffers."
        )
