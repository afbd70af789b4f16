# SPDX-License-Identifier: MIT
"""Copies of a graph of torch.compile in which the sizes that it leaves open are numbers.

Rules match and prove on numbers. What they find at the sizes of the first call and again at others, which Dynamo's
guards admit as well, holds at every size of the graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import SymInt, Tensor
from torch.fx import Graph, Node

from opswap._torch import tree_leaves

from ..graph.metadata import drop_unused_metadata

# Only a compiled graph needs sympy, whose import takes a second and adds a warnings filter.
if TYPE_CHECKING:
    from sympy import Symbol
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["AtOtherSizes", "at_other_sizes"]

# What is tried for each open size after that of the first call: a little more, multiples for code that divides it.
_OTHERS = ((3, 1), (5, 1), (7, 1), (2, 1), (0, 2), (0, 3))
_FURTHER = 64  # sizes from 2 on that are tried for one that none of these fits
_COPIES = 3


@dataclass(frozen=True)
class AtOtherSizes:
    """One copy. `original`: the node that each of its nodes was copied from; `values`: its tensors, without data."""

    graph: Graph
    original: Mapping[Node, Node]
    values: Mapping[Node, Tensor]


def at_other_sizes(graph: Graph) -> list[AtOtherSizes]:
    """The copies of the graph, that of the first call first; none if no other sizes can be found.

    Args: graph: its nodes have "example_value" in their meta, as Dynamo's have.
    """
    from sympy import Symbol

    sizes = [t.node for n in graph.nodes for t in _sizes(n.meta.get("example_value"))]
    hints = {s.expr: s.hint for s in sizes if isinstance(s.expr, Symbol) and s.hint is not None}
    if any(not s.expr.free_symbols <= hints.keys() for s in sizes):
        return []
    if not hints:
        return [_copy(graph, {})]
    environment = sizes[0].shape_env
    chosen = [hints]
    for start in range(_COPIES - 1):
        numbers = _vary(hints, environment, start)
        if numbers in chosen:
            return []
        chosen.append(numbers)
    return [_copy(graph, numbers) for numbers in chosen]


def _sizes(value: Any) -> Iterator[SymInt]:
    """Every size in the value of a node that is not a number."""
    for leaf in tree_leaves(value):
        parts = (*leaf.shape, *leaf.stride()) if isinstance(leaf, Tensor) else (leaf,)
        yield from (p for p in parts if isinstance(p, SymInt))


def _vary(hints: Mapping[Symbol, int], environment: ShapeEnv, start: int) -> dict[Symbol, int]:
    """Another number for every open size, if the guards leave it a choice."""
    numbers = dict(hints)
    for place, (symbol, hint) in enumerate(hints.items()):
        turn = (place + 2 * start) % len(_OTHERS)
        steps = _OTHERS[turn:] + _OTHERS[:turn]
        tries = itertools.chain((hint * factor + more for more, factor in steps), range(2, _FURTHER))
        for number in tries:
            if number != hint and _admits(environment, {**numbers, symbol: number}):
                numbers[symbol] = number
                break
    return numbers


def _admits(environment: ShapeEnv, numbers: Mapping[Symbol, int]) -> bool:
    """True if the guards let tensors of these sizes into the graph."""
    from sympy import true

    for symbol, number in numbers.items():
        allowed = environment.var_to_range.get(symbol)
        if allowed is not None and not allowed.lower <= number <= allowed.upper:
            return False
    return all(environment.replace(g.expr).xreplace(numbers) == true for g in environment.guards)


def _number(size: Any, numbers: Mapping[Symbol, int]) -> Any:
    return int(size.node.expr.xreplace(numbers)) if isinstance(size, SymInt) else size


def _copy(graph: Graph, numbers: Mapping[Symbol, int]) -> AtOtherSizes:
    copy = Graph()
    copies: dict[Node, Any] = {}
    values: dict[Node, Tensor] = {}
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, SymInt):
            copies[node] = _number(value, numbers)
            continue
        copies[node] = copy.node_copy(node, copies.__getitem__)
        if isinstance(value, Tensor):
            values[copies[node]] = _tensor(value, numbers)
    drop_unused_metadata(copy)
    original = {new: old for old, new in copies.items() if isinstance(new, Node)}
    return AtOtherSizes(copy, original, values)


def _tensor(value: Tensor, numbers: Mapping[Symbol, int]) -> Tensor:
    """The same tensor with numbers for its sizes, still without data."""
    if not any(isinstance(n, SymInt) for n in (*value.shape, *value.stride())):
        return value
    size, stride = ([_number(n, numbers) for n in ns] for ns in (value.shape, value.stride()))
    with value.fake_mode:
        new = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
    return new.requires_grad_(value.requires_grad)
