# SPDX-License-Identifier: MIT
"""Find regions of a graph that only move the elements of one tensor.

A region starts at one tensor, the source, and holds nothing but views, copies, cuts, joins and arithmetic on
sizes. What it computes is left to the proof: no name of a user's function or class is looked at.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from torch.fx import Graph, Node

from ...graph.calls import JOIN, REORDER, graph_kinds, joined_parts, operation, write_between
from ...rule import Region

__all__ = ["FOREIGN_SIZES", "regions"]

FOREIGN_SIZES = "its sizes come from another tensor"


def regions(graph: Graph) -> tuple[Region, ...]:
    """Every candidate, larger ones of one source first; they overlap, so that using one drops others."""
    nodes = tuple(graph.nodes)
    known = vars(graph).get("_opswap_regions")  # several rules need them
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
        yield Region(
            inputs=parts,
            cat=source,
            nodes=(source, *ordered),
            outputs=outputs,
            anchor=source,
            main=mixing,
            problem=problem,
        )
    anchor = next(n for n in ordered if n not in sizes)
    problem = problem or write_between(anchor, ordered)
    yield Region(
        inputs=(source,), nodes=ordered, outputs=outputs, anchor=anchor, main=mixing, problem=problem
    )


def _sizes_of(source: Node, ordered: tuple[Node, ...], kinds: dict[Node, str]) -> set[Node]:
    """Size nodes that need nothing but the source: they may stay where they are."""
    sizes: set[Node] = set()
    for node in ordered:
        if kinds[node] in ("size", "data") and sizes.union((source,)).issuperset(node.all_input_nodes):
            sizes.add(node)
    return sizes
