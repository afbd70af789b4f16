# SPDX-License-Identifier: MIT
"""Times of a step of several forms of one model, in turn."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from opswap._torch import tree_leaves, tree_map

from .capture.quiet import generators_kept

__all__ = ["in_turn", "step"]

_MOST_ROUNDS, _FEWEST_ROUNDS, _SECONDS = 7, 2, 4.0


def step(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """A training step without the optimizer's part, or an inference if the model is in eval() mode."""
    if not model.training:
        with torch.no_grad():
            model(*inputs)
        return
    inputs = tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, inputs)
    outputs = [y for y in tree_leaves(model(*inputs)) if isinstance(y, Tensor) and y.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    for p in model.parameters():
        p.grad = None


def in_turn(steps: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Median milliseconds of each, over two to seven rounds in random order, after one round that does not count.

    Random generators are left as they were.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    generator = random.Random(0)
    with generators_kept():
        begin = time.perf_counter()
        for i in range(_MOST_ROUNDS + 1):
            if i > _FEWEST_ROUNDS and time.perf_counter() - begin > _SECONDS:
                break
            for name in generator.sample(list(steps), len(steps)):
                start = time.perf_counter()
                steps[name]()
                if i:
                    seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
