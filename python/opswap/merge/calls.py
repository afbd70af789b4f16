# SPDX-License-Identifier: MIT
"""Properties of torch's functions and methods: on which form of the branches' values they may run unchanged."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import fx

from ..swap.graph.calls import argument
from ..swap.graph.table import Does, names_of
from .program import Method, picklable

__all__ = [
    "BINARY",
    "CHANNELWISE_CALLS",
    "ELEMENTWISE_CALLS",
    "REDUCTIONS",
    "argument",
    "call_name",
    "callee",
    "may_drop_batch",
    "out_of_place",
    "writes",
]

ELEMENTWISE_CALLS = names_of(Does.ELEMENTWISE)
BINARY = names_of(Does.BINARY)
CHANNELWISE_CALLS = names_of(Does.PER_CHANNEL)
REDUCTIONS = names_of(Does.REDUCE)
_OUT_OF_PLACE = {
    "iadd": operator.add,
    "imul": operator.mul,
    "isub": operator.sub,
    "itruediv": operator.truediv,
}


def call_name(node: fx.Node) -> str:
    """The plain name of a function or method: relu for torch.relu_, F.relu and x.relu()."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name if name.startswith("_") else name.rstrip("_")


def callee(node: fx.Node) -> Callable[..., Any]:
    """What the node calls, to be called with its arguments."""
    return Method(node.target) if node.op == "call_method" else picklable(node.target)


def writes(node: fx.Node) -> bool:
    """True if the call writes to its first argument."""
    raw = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = raw.endswith("_") and not raw.endswith("__")
    return (
        in_place
        or call_name(node) in _OUT_OF_PLACE
        or node.target is operator.setitem
        or bool(node.kwargs.get("inplace"))
        or node.kwargs.get("out") is not None
    )


def out_of_place(node: fx.Node) -> Callable[..., Any] | None:
    """The function that gives the same result without writing, if there is one."""
    name = call_name(node)
    if name in _OUT_OF_PLACE:
        return _OUT_OF_PLACE[name]
    return Method(name) if node.op == "call_method" else None


def may_drop_batch(node: fx.Node) -> bool:
    """True for a squeeze that removes the batch's dimension if that is 1, which a batch of all branches is not."""
    if node.op not in ("call_function", "call_method") or call_name(node) != "squeeze":
        return False
    dims = argument(node, 1, "dim")
    return dims is None or 0 in (dims if isinstance(dims, (tuple, list)) else (dims,))
