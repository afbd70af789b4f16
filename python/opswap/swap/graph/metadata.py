# SPDX-License-Identifier: MIT
"""Metadata: what code can read of a tensor without its elements, and what it computes from that."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ..runtime.guards import is_plain_tensor
from .calls import operation, reached, subject
from .table import Does, names_of

__all__ = [
    "ancestors",
    "copy_with_inputs",
    "counts_dimensions",
    "drop_unused_metadata",
    "expression",
    "is_known_before_forward",
    "is_metadata",
    "is_shape",
    "joined_shape",
    "known_dimensions",
    "without_joins",
]

ATTRIBUTES = {"device", "dtype", "is_cuda", "itemsize", "layout", "ndim", "shape"}
_METHODS = names_of(Does.METADATA)
_OF_TENSORS = {builtins.len, is_plain_tensor, torch.is_complex, torch.is_floating_point, torch.numel}
_OF_METADATA = {
    builtins.format,
    builtins.getattr,
    builtins.repr,
    builtins.str,
    math.ceil,
    math.floor,
    operator.abs,
    operator.add,
    operator.and_,
    operator.eq,
    operator.floordiv,
    operator.ge,
    operator.getitem,
    operator.gt,
    operator.invert,
    operator.le,
    operator.lshift,
    operator.lt,
    operator.mod,
    operator.mul,
    operator.ne,
    operator.neg,
    operator.or_,
    operator.pos,
    operator.pow,
    operator.rshift,
    operator.sub,
    operator.truediv,
    operator.xor,
}
# Views of an argument that a guard may compute again before the forward runs: they copy nothing.
_VIEWS = names_of(Does.VIEW)


def is_metadata(node: Node, known: dict[Node, bool] | None = None) -> bool:
    """True if the node's value needs the sizes, dtype or device of tensors and nothing else of them."""
    known = {} if known is None else known
    if node not in known:
        known[node] = _is_metadata(node, known)
    return known[node]


def _is_metadata(node: Node, known: dict[Node, bool]) -> bool:
    given = [is_metadata(n, known) for n in node.all_input_nodes]
    if not given:
        return False
    if node.op == "call_method":
        return (given[0] and all(given)) or (node.target in _METHODS and all(given[1:]))
    if node.op != "call_function":
        return False
    if node.target is getattr and node.args[1] in ATTRIBUTES:
        return True
    return node.target in _OF_TENSORS or (node.target in _OF_METADATA and all(given))


def counts_dimensions(node: Node) -> bool:
    """True for the number of dimensions of a tensor: x.dim(), x.ndim, len(x.shape), len(x.size())."""
    if node.op == "call_method":
        return node.target in ("dim", "ndimension")
    if node.target is getattr:
        return node.args[1] == "ndim"
    return node.target is len and isinstance(node.args[0], Node) and is_shape(node.args[0])


def known_dimensions(node: Node) -> int | None:
    """What `counts_dimensions` tells of a view whose sizes are written one by one, as x.view(n, -1, *x.shape[2:])."""
    while node.target is len or is_shape(node) or counts_dimensions(node):
        node = node.args[0]
    if node.op != "call_method" or node.target not in ("reshape", "view") or node.kwargs:
        return None
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)):
        return len(sizes[0])
    return len(sizes) if len(sizes) > 1 else None  # a single one may be a size of several dimensions


def is_shape(node: Node) -> bool:
    if node.op == "call_method":
        return node.target == "size" and len(node.args) == 1 and not node.kwargs
    return node.op == "call_function" and node.target is getattr and node.args[1] == "shape"


def is_known_before_forward(node: Node, known: dict[Node, bool] | None = None) -> bool:
    """True if the value depends only on the forward's arguments."""
    known = {} if known is None else known
    if node not in known:
        named = getattr(node.target, "__name__", node.target)
        view = named in _VIEWS or (node.target is getattr and node.args[1] == "data")
        reads = is_metadata(node) or (node.op in ("call_function", "call_method") and view)
        known[node] = node.op == "placeholder" or (
            reads and all(is_known_before_forward(n, known) for n in node.all_input_nodes)
        )
    return known[node]


def ancestors(nodes: Iterable[Node]) -> set[Node]:
    """The nodes and everything that they are computed from."""
    return reached(nodes, lambda node: node.all_input_nodes)


def copy_with_inputs(graph: Graph, wanted: Node) -> tuple[Graph, Node]:
    """A new graph with the same placeholders that computes one node, without an output yet."""
    needed = ancestors([wanted])
    copy = Graph()
    values: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "placeholder" or node in needed:
            values[node] = copy.node_copy(node, values.__getitem__)
    return copy, values[wanted]


def drop_unused_metadata(graph: Graph) -> None:
    """Erase metadata that is not read: answers that became guards, unused names of `b, c, h, w = x.size()`."""
    known: dict[Node, bool] = {}
    for node in reversed(graph.nodes):
        of_data = operation(node) == "data"
        if (
            not node.users
            and "unpacked" not in node.meta  # to a number of names, which is checked
            and node.op in ("call_function", "call_method")
            and (of_data or is_metadata(node, known))
        ):
            graph.erase_node(node)


def expression(node: Any, known: dict[Node, bool]) -> str:
    """A fact in words that are equal if it is the same fact of the same tensors."""
    if not isinstance(node, Node):
        return repr(node)
    if not is_metadata(node, known):
        return node.name
    target = getattr(node.target, "__name__", node.target)
    options = [f"{k}={expression(v, known)}" for k, v in node.kwargs.items()]
    return f"{target}({', '.join([*(expression(a, known) for a in node.args), *options])})"


def joined_shape(*tensors: torch.Tensor) -> torch.Size:
    """The size of torch.cat(tensors, 1), for tensors that can be joined."""
    first = tensors[0].shape
    return torch.Size((first[0], sum(t.shape[1] for t in tensors), *first[2:]))


def without_joins(graph: Graph, node: Node, join_of: dict[Node, tuple[Node, ...]]) -> Node:
    """The same metadata, read from the parts of every torch.cat instead of its result.

    Args: join_of: the parts of each node that is a torch.cat along dimension 1.
    Returns: node itself if it reads no cat; else a new node before it.
    """
    done: dict[Node, Node] = {}

    def rebuild(old: Node) -> Node:
        if old not in done:
            done[old] = _rebuilt(graph, node, old, join_of, rebuild)
        return done[old]

    return rebuild(node)


def _rebuilt(graph: Graph, before: Node, old: Node, join_of: dict[Node, tuple[Node, ...]], rebuild) -> Node:
    if not is_metadata(old):
        return old
    of = subject(old)
    while isinstance(of, Node) and of.target is getattr and of.args[1] == "data":
        of = of.args[0]
    if isinstance(of, Node) and of in join_of and (is_shape(old) or _is_size_of_one(old)):
        with graph.inserting_before(before):
            shape = graph.call_function(joined_shape, join_of[of])
            if is_shape(old):
                return shape
            return graph.call_function(operator.getitem, (shape, old.args[1]))
    args, kwargs = map_arg((old.args, old.kwargs), rebuild)
    if (args, kwargs) == (old.args, old.kwargs):
        return old
    with graph.inserting_before(before):
        return graph.create_node(old.op, old.target, args, kwargs)


def _is_size_of_one(node: Node) -> bool:
    return node.op == "call_method" and node.target == "size" and len(node.args) == 2
