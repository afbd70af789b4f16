# SPDX-License-Identifier: MIT
"""What a forward begins and ends with: whether a rule may join it with the code before or behind it."""

from __future__ import annotations

from torch import fx, nn

from ..graph.calls import graph_kinds

__all__ = ["cuts_its_input", "joins_its_output", "last_module"]


def cuts_its_input(graph: fx.Graph) -> bool:
    """True if the forward begins by moving parts of its input, as a channel split does."""
    kinds = graph_kinds(graph)
    return any(
        kinds[user] in ("tensor", "tuple")
        for node in graph.nodes
        if node.op == "placeholder"
        for user in node.users
    )


def joins_its_output(graph: fx.Graph) -> bool:
    """True if the forward ends by moving parts of its output."""
    result = _result(graph)
    return isinstance(result, fx.Node) and graph_kinds(graph)[result] == "tensor"


def last_module(graph: fx.Graph) -> nn.Module | None:
    """The module whose result the forward returns, None if it returns something else."""
    result = _result(graph)
    called = isinstance(result, fx.Node) and result.op == "call_module"
    return result.meta["module"] if called else None


def _result(graph: fx.Graph) -> object:
    (result,) = (n.args[0] for n in graph.nodes if n.op == "output")
    return result
