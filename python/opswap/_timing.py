# SPDX-License-Identifier: MIT
"""Functions timed in turn in one process, so that a disturbance of the machine affects all of them alike."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Spread", "medians_in_turn", "ratio_spread", "time_in_turn"]

_SHORTEST_BLOCK_NS = 200_000
_SLOW_CALL_NS = 500_000_000


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of `samples` numbers, such as the milliseconds of one call."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Of at least one number."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0], 1)
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high, len(samples))


def ratio_spread(slow: Sequence[float], fast: Sequence[float]) -> Spread:
    """Of the ratios of two functions timed in turn, round by round.

    A machine that changes its speed in the middle changes both times of a round, but would change one of two medians
    more than the other.
    """
    return Spread.of([a / b for a, b in zip(slow, fast, strict=True)])


def time_in_turn(
    functions: Mapping[str, Callable[[], Any]], seconds: float, rounds: int, most: float = math.inf
) -> dict[str, list[float]]:
    """Milliseconds of a call, one number per round: the functions in turn, in random order, for about `seconds`.

    The order is random because a function profits from what the one before it left in the caches. A block
    is one call, or as many as take 0.2 ms; two calls of each come first, one if it takes half a second.

    Args:
        functions: one with an attribute `prepare` has it called before each block, outside of the time; one with an
            attribute `prepare_call` before each call.
        rounds: at least so many. most: at most so many.
    """
    calls = {name: _calls_per_block(function) for name, function in functions.items()}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    order = list(functions)
    generator = random.Random(0)
    deadline = time.perf_counter() + seconds
    done = 0
    while done < rounds or (done < most and time.perf_counter() < deadline):
        generator.shuffle(order)
        for name in order:
            samples[name].append(_block_ns(functions[name], calls[name]) / calls[name] / 1e6)
        done += 1
    return samples


def medians_in_turn(
    functions: Mapping[str, Callable[[], Any]], seconds: float, rounds: int = 5, most: float = math.inf
) -> dict[str, float]:
    """The median milliseconds of a call of each; see `time_in_turn`."""
    samples = time_in_turn(functions, seconds, rounds, most)
    return {name: Spread.of(times).median for name, times in samples.items()}


def _block_ns(function: Callable[[], Any], calls: int) -> int:
    prepare = getattr(function, "prepare", None)
    if prepare is not None:
        prepare()
    prepare_call = getattr(function, "prepare_call", None)
    if prepare_call is not None:
        return sum(_call_ns(function, prepare_call) for _ in range(calls))
    start = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return time.perf_counter_ns() - start


def _call_ns(function: Callable[[], Any], prepare: Callable[[], Any]) -> int:
    prepare()
    start = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - start


def _calls_per_block(function: Callable[[], Any]) -> int:
    if _block_ns(function, 1) >= _SLOW_CALL_NS:
        return 1
    return max(1, _SHORTEST_BLOCK_NS // max(_block_ns(function, 1), 1))
