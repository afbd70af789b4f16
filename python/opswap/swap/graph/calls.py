# SPDX-License-Identifier: MIT
"""Find regions of a graph that only move the elements of one tensor.

A region starts at one tensor, the source, and holds nothing but views, copies, cuts, joins and arithmetic on
sizes. What it computes is left to the proof: no name of a user's function or class is looked at.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.graph import inplace_methods

__all__ = [
    "FOREIGN_SIZES",
    "JOIN",
    "REORDER",
    "Region",
    "graph_kinds",
    "hazard",
    "joined_parts",
    "operation",
    "regions",
    "subject",
    "writes",
]

# Reorder elements (or join them): a region without one of these is none.
REORDER = {
    "channel_shuffle",
    "moveaxis",
    "movedim",
    "native_channel_shuffle",
    "permute",
    "swapaxes",
    "swapdims",
    "transpose",
}
JOIN = {"cat", "concat", "concatenate", "stack"}
_RESHAPE = {
    "clone",
    "contiguous",
    "flatten",
    "narrow",
    "reshape",
    "select",
    "squeeze",
    "unflatten",
    "unsqueeze",
    "view",
}
_TUPLE = {"chunk", "split", "tensor_split", "unbind"}
_SIZE = {"dim", "ndimension", "numel", "size"}
_METHODS = REORDER | _RESHAPE | _TUPLE | _SIZE
_FUNCTIONS = {getattr(torch, n): n for n in sorted(_METHODS | JOIN) if hasattr(torch, n)}
_ARITHMETIC = {operator.add, operator.floordiv, operator.mod, operator.mul, operator.neg, operator.sub}

FOREIGN_SIZES = "its sizes come from another tensor"


@dataclass(frozen=True)
class Region:
    """Nodes that move the elements of the inputs, joined along dimension 1, to the outputs.

    inputs: the tensors that `cat` joins, or the source alone where cat is None.
    nodes: all of the region, cat and outputs included, in graph order.
    anchor: the first of them that yields a tensor, where the replacement is called.
    mixing: the node that changes the order of elements.
    problem: why the region may not be replaced even if the proof succeeds, or "".
    modules: calls of modules, those among `nodes` first; the replacement gets the modules after the inputs.
    """

    inputs: tuple[Node, ...]
    cat: Node | None
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    anchor: Node
    mixing: Node
    problem: str
    modules: tuple[Node, ...] = ()

    @property
    def source(self) -> Node:
        return self.inputs[0] if self.cat is None else self.cat

    @property
    def body(self) -> tuple[Node, ...]:
        """The nodes without cat."""
        return tuple(n for n in self.nodes if n is not self.cat)


def operation(node: Node) -> str:
    """The torch name of a movement or size operation, "getitem", "arithmetic", an attribute's name, or ""."""
    if node.op == "call_method":
        return node.target if node.target in _METHODS else ""
    if node.op != "call_function":
        return ""
    if node.target is getattr and len(node.args) == 2 and node.args[1] in ("shape", "ndim", "data"):
        return node.args[1]
    if node.target is operator.getitem:
        return "getitem"
    if getattr(node.target, "__name__", "") == "_get_data_attr":  # what Dynamo writes for x.data
        return "data"
    if node.target in _ARITHMETIC:
        return "arithmetic"
    return _FUNCTIONS.get(node.target, "")


def graph_kinds(graph: Graph) -> dict[Node, str]:
    """What every node yields: "tensor", "tuple", "size" or "data" by movement, "opaque" by anything else."""
    kinds: dict[Node, str] = {}
    for node in graph.nodes:
        kinds[node] = _kind(node, kinds)
    return kinds


def subject(node: Node) -> Any:
    """What a call is made on: its first argument, by position or by name."""
    if node.args:
        return node.args[0]
    return node.kwargs.get("input", node.kwargs.get("self", node.kwargs.get("tensors")))


def _kind(node: Node, kinds: dict[Node, str]) -> str:
    name = operation(node)
    given = {kinds[n] for n in node.all_input_nodes}
    if not name:
        return "opaque"
    if name == "arithmetic":
        return "size" if given == {"size"} else "opaque"
    if name in JOIN:
        parts = subject(node)
        static = isinstance(parts, (list, tuple)) and all(isinstance(p, Node) for p in parts)
        return "tensor" if static and given <= {"tensor", "opaque"} else "opaque"
    of = subject(node)
    kind = kinds.get(of, "opaque") if isinstance(of, Node) else ""
    if name in _SIZE or name in ("shape", "ndim"):
        return "size" if kind in ("tensor", "opaque", "data") else "opaque"
    if name == "getitem":
        return _getitem_kind(node, kind)
    sizes_only = all(kinds[n] == "size" for n in node.all_input_nodes if n is not of)
    if kind not in ("tensor", "opaque") or not sizes_only:
        return "opaque"
    return "data" if name == "data" else "tuple" if name in _TUPLE else "tensor"


def _getitem_kind(node: Node, kind: str) -> str:
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if not all(isinstance(i, (int, slice, Node)) or i is None or i is ... for i in index):
        return "opaque"
    if kind == "size":
        return "size"
    return "tensor" if kind in ("tensor", "tuple", "opaque") else "opaque"


def regions(graph: Graph) -> tuple[Region, ...]:
    """Every candidate, larger ones of one source first; they overlap, so that taking one drops others."""
    nodes = tuple(graph.nodes)
    known = vars(graph).get("_opswap_regions")  # several rules ask
    if known is None or known[0] != nodes:
        known = nodes, tuple(_regions(graph))
        graph._opswap_regions = known
    return known[1]


def _regions(graph: Graph) -> Iterator[Region]:
    kinds = graph_kinds(graph)
    order = list(graph.nodes)
    position = {node: i for i, node in enumerate(order)}
    for source in order:
        if kinds[source] in ("tensor", "opaque") and source.op != "output":
            cone = _cone(source, kinds, order, position)
            if any(_mixes(n) for n in cone):
                yield from _regions_from(source, cone, kinds, position)


def _mixes(node: Node) -> bool:
    name = operation(node)
    if name == "getitem":
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        return any(isinstance(i, slice) and i.step not in (None, 1) for i in index)
    return name in REORDER or name in JOIN


def _cone(source: Node, kinds: dict[Node, str], order: list[Node], position: dict[Node, int]) -> list[Node]:
    """All nodes that movement reaches from the source alone, in graph order."""
    inside = {source}
    cone: list[Node] = []
    heap = [position[n] for n in source.users]
    heapq.heapify(heap)
    while heap:
        node = order[heapq.heappop(heap)]
        if node in inside or kinds[node] == "opaque":
            continue
        if all(n in inside or kinds[n] == "size" for n in node.all_input_nodes):
            inside.add(node)
            cone.append(node)
            for user in node.users:
                heapq.heappush(heap, position[user])
    return cone


def _regions_from(
    source: Node, cone: list[Node], kinds: dict[Node, str], position: dict[Node, int]
) -> Iterator[Region]:
    inside = set(cone)
    for last in (*reversed(cone), source):
        if kinds[last] not in ("tensor", "tuple") and last is not source:
            continue
        users = [u for u in last.users if kinds[u] != "size" and (u in inside or last is not source)]
        cuts = tuple(sorted((u for u in users if operation(u) == "getitem"), key=_cut_order))
        if len(cuts) > 1 and len(cuts) == len(users) and all(u in inside for u in cuts):
            yield from _with_cat(source, cuts, inside, kinds, position)
        if kinds[last] == "tensor" and last is not source:
            yield from _with_cat(source, (last,), inside, kinds, position)


def _cut_order(node: Node) -> tuple[int, str]:
    """Cuts in the order of where they begin: by number, or by the start of a slice of the channels."""
    index = node.args[1]
    if isinstance(index, tuple):
        index = next((i for i in index[1:2] if isinstance(i, slice)), slice(None)).start or 0
    return (index if isinstance(index, int) else 0, node.name)


def _with_cat(
    source: Node,
    outputs: tuple[Node, ...],
    inside: set[Node],
    kinds: dict[Node, str],
    position: dict[Node, int],
) -> Iterator[Region]:
    """The region that ends in outputs: with the torch.cat that makes its source, and without."""
    nodes, stack, outside = set(outputs), list(outputs), False
    while stack:
        for n in stack.pop().all_input_nodes:
            outside = outside or (n is not source and n not in inside)
            if n in inside and n not in nodes:
                nodes.add(n)
                stack.append(n)
    mixing = next((n for n in sorted(nodes, key=position.__getitem__) if _mixes(n)), None)
    if mixing is None:
        return
    ordered = tuple(sorted(nodes, key=position.__getitem__))
    sizes = _sizes_of(source, ordered, kinds)
    leaking = {n for n in nodes.difference(outputs) if not set(n.users) <= nodes}
    problem = ""
    if outside:
        problem = FOREIGN_SIZES
    elif leaking - sizes:
        problem = "an intermediate result is used elsewhere"
    parts = joined_parts(source)
    if parts and set(source.users) <= nodes and not leaking & sizes:
        yield Region(parts, source, (source, *ordered), outputs, source, mixing, problem)
    anchor = next(n for n in ordered if n not in sizes)
    problem = problem or hazard(anchor, ordered)
    yield Region((source,), None, ordered, outputs, anchor, mixing, problem)


def _sizes_of(source: Node, ordered: tuple[Node, ...], kinds: dict[Node, str]) -> set[Node]:
    """Size nodes that need nothing but the source: they may stay where they are."""
    sizes: set[Node] = set()
    for node in ordered:
        if kinds[node] in ("size", "data") and sizes.union((source,)).issuperset(node.all_input_nodes):
            sizes.add(node)
    return sizes


def joined_parts(node: Node) -> tuple[Node, ...]:
    """The tensors that a torch.cat along dimension 1 joins; nothing for any other node."""
    if operation(node) not in ("cat", "concat", "concatenate"):
        return ()
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
    parts = subject(node)
    if dim != 1 or "out" in node.kwargs or not isinstance(parts, (list, tuple)) or not parts:
        return ()
    return tuple(parts) if all(isinstance(p, Node) for p in parts) else ()


def hazard(anchor: Node, ordered: tuple[Node, ...]) -> str:
    """Code between the region's first view and its last node that may write to the source."""
    node = anchor
    while node is not ordered[-1]:
        node = node.next
        if node not in ordered and (node.op == "call_module" or writes(node)):
            return f"{node.name} may write to the tensor while the region still reads it"
    return ""


def writes(node: Node) -> bool:
    """True where the call's name or arguments say that it writes to a tensor."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or name in inplace_methods or bool(node.kwargs.get("inplace") or node.kwargs.get("out"))
