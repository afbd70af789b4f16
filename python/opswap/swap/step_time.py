# SPDX-License-Identifier: MIT
"""Times of a step of several forms of one model, in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from opswap._timing import medians_in_turn
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
    """Median milliseconds of each, over two to seven rounds; see `opswap._timing.time_in_turn`.

    Random generators are left as they were.
    """
    with generators_kept():
        return medians_in_turn(steps, _SECONDS, _FEWEST_ROUNDS, _MOST_ROUNDS)
