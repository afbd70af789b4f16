# SPDX-License-Identifier: MIT
"""A tensor over the mean of its squares, in any spelling: LPRNet's global context."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F

from ..rule import Region, Replacement, Rule, Shapes, named
from .arithmetic import is_call, operands, squared
from .closed import closed_region
from .conditions import normed_fast, poolable

__all__ = ["RULES"]


def _mean_of_all(node: Any) -> Any:
    """What is averaged over all elements, or None."""
    whole = is_call(node, (torch.mean,), ("mean",)) and len(node.args) == 1 and not node.kwargs
    return node.args[0] if whole else None


def _square_of(node: Any) -> Any:
    """What is squared, also as a product with itself, or None."""
    factors = operands(node, (operator.mul, torch.mul, torch.multiply), ("mul", "multiply"))
    if factors:
        return factors[0] if factors[0] is factors[1] else None
    return squared(node)


def _find(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        quotient = operands(
            node,
            (operator.truediv, torch.div, torch.divide, torch.true_divide),
            ("div", "divide", "true_divide"),
        )
        if not quotient or not isinstance(quotient[0], Node):
            continue
        x, mean = quotient
        square = _mean_of_all(mean)
        if square is not None and _square_of(square) is x:
            yield closed_region((x,), (square, mean, node), node)


def _prove(region: Region, shapes: Shapes) -> Replacement:
    return Replacement(
        "poolable(x0) and normed_fast(x0)",
        "over_mean_square(x0)",
        named(poolable, normed_fast, F.over_mean_square),
    )


class _Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.pow(2).mean()


RULES = (Rule("over_mean_square", False, _find, _prove, example=lambda: (_Scaled(), ((32, 128, 4, 18),))),)
