# SPDX-License-Identifier: MIT
"""Graphs of one forward in train() and in eval() as one graph that reads the flag."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

__all__ = ["fingerprint", "line", "lines", "read_flags"]


def read_flags(graph: fx.Graph, other: fx.Graph) -> bool | None:
    """Replace True and False in the graphs by reads of `training`; None if the graphs differ elsewhere."""
    if len(graph.nodes) != len(other.nodes):
        return None
    twins: dict[fx.Node, fx.Node] = {}
    edits = []
    for a, b in zip(graph.nodes, other.nodes, strict=True):
        twins[b] = a
        if (a.op, a.target) != (b.op, b.target):
            return None
        values = [(a.args, b.args), (a.kwargs, b.kwargs)]
        differs = False
        for x, y in values:
            state = _compare(x, y, twins)
            if state is None:
                return None
            differs = differs or state
        if differs:
            edits.append((a, b))
    for a, b in edits:
        with graph.inserting_before(a):
            flag = graph.get_attr(".".join(filter(None, (a.meta["owner"], "training"))))
            flag.meta.update(a.meta)
            opposite = graph.call_function(operator.not_, (flag,))
            opposite.meta.update(a.meta)
        a.args = _with_flags(a.args, b.args, flag, opposite)
        a.kwargs = _with_flags(a.kwargs, b.kwargs, flag, opposite)
        if not opposite.users:
            graph.erase_node(opposite)
    return bool(edits)


def fingerprint(graph: fx.Graph, flags: dict[str, bool]) -> list[tuple[Any, ...]]:
    """The graph with the training flags that it reads replaced by their values."""
    values: dict[fx.Node, Any] = {}
    lines = []
    for node in graph.nodes:
        if node.op == "get_attr" and (node.target == "training" or node.target.endswith(".training")):
            values[node] = flags.get(node.target.rpartition(".")[0])
        elif node.target is operator.not_ and isinstance(values.get(node.args[0]), bool):
            values[node] = not values[node.args[0]]
        else:
            values[node] = f"%{len(lines)}"
            args = fx.node.map_arg((node.args, node.kwargs), lambda n: _Shown(values[n]))
            lines.append((node.op, node.target, str(args)))
    return lines


def lines(graph: fx.Graph, nothing: str = "") -> list[str]:
    """The steps of a graph in words, with None in the place of one of them."""
    return [line(node, nothing) for node in graph.nodes]


def line(node: fx.Node, nothing: str = "") -> str:
    """One step of a graph in words."""

    def named(n: fx.Node) -> str | None:
        return None if n.name == nothing else f"%{n.name}"

    return repr((node.op, node.target, fx.node.map_arg((node.args, node.kwargs), named)))


def _compare(x: Any, y: Any, twins: dict[fx.Node, fx.Node]) -> bool | None:
    """False if equal, True if they differ in booleans only, else None."""
    if isinstance(x, fx.Node) or isinstance(y, fx.Node):
        return False if isinstance(y, fx.Node) and twins.get(y) is x else None
    if type(x) is not type(y):
        return None
    if isinstance(x, bool):
        return x is not y
    if isinstance(x, dict):
        if list(x) != list(y):
            return None
        x, y = tuple(x.values()), tuple(y.values())
    if isinstance(x, slice):
        x, y = (x.start, x.stop, x.step), (y.start, y.stop, y.step)
    if isinstance(x, (tuple, list)):
        states = [_compare(a, b, twins) for a, b in zip(x, y, strict=False)]
        return None if len(x) != len(y) or None in states else any(states)
    return False if x is y or x == y else None


def _with_flags(x: Any, y: Any, flag: fx.Node, opposite: fx.Node) -> Any:
    if isinstance(x, bool):
        return x if x is y else flag if x else opposite
    if isinstance(x, dict):
        return {k: _with_flags(x[k], y[k], flag, opposite) for k in x}
    if isinstance(x, (tuple, list)):
        return type(x)(_with_flags(a, b, flag, opposite) for a, b in zip(x, y, strict=True))
    return x


class _Shown:
    """Prints as a value without quotes."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return str(self.value)
