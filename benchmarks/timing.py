# SPDX-License-Identifier: MIT
"""Functions timed in turn in one process, so that a disturbance of the machine meets all of them alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Spread", "paired_ratio", "time_in_turn"]

_SHORTEST_BLOCK_NS = 200_000


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of one call in milliseconds, over `samples` blocks of calls."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        low, median, high = (float(q) for q in np.percentile(samples, (25, 50, 75)))
        return cls(median, low, high, len(samples))


def paired_ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Median of the ratios of two functions timed in turn, round by round: a machine that changes its speed in the
    middle changes both times of a round, where it would part the two medians."""
    return float(np.median(np.divide(slow, fast)))


def time_in_turn(
    functions: Mapping[str, Callable[[], Any]], seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of a call, one number a round: the functions in turn, in random order, for about `seconds`.

    Args: rounds: so many at least.
    The order is random because a function profits from what the one before it left in the caches. A block
    is one call, or as many as take 0.2 ms; two calls of each come first.
    """
    calls = {name: _calls_per_block(function) for name, function in functions.items()}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    generator = random.Random(0)
    deadline = time.perf_counter() + seconds
    done = 0
    while done < rounds or time.perf_counter() < deadline:
        generator.shuffle(order)
        for name in order:
            samples[name].append(_block_ns(functions[name], calls[name]) / calls[name] / 1e6)
        done += 1
    return samples


def _block_ns(function: Callable[[], Any], calls: int) -> int:
    start = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return time.perf_counter_ns() - start


def _calls_per_block(function: Callable[[], Any]) -> int:
    function()
    return max(1, _SHORTEST_BLOCK_NS // max(_block_ns(function, 1), 1))
