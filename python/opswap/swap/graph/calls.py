# SPDX-License-Identifier: MIT
"""What a call of a graph is: movement, size or join; which nodes are reached; what writes in between."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.graph import inplace_methods

from .table import Does, functions_of, names_of

__all__ = [
    "JOIN",
    "REORDER",
    "argument",
    "graph_kinds",
    "joined_parts",
    "operation",
    "reached",
    "subject",
    "write_between",
    "writes",
]

# A region must have at least one call that reorders elements, or joins them.
REORDER = names_of(Does.REORDER)
JOIN = names_of(Does.JOIN)
_TUPLE = names_of(Does.PARTS)
_SIZE = names_of(Does.SIZES)
_METHODS = names_of(Does.REORDER | Does.RESHAPE | Does.PARTS | Does.SIZES)
_FUNCTIONS = functions_of(Does.REORDER | Does.RESHAPE | Does.PARTS | Does.SIZES | Does.JOIN, (torch,))
_ARITHMETIC = {operator.add, operator.floordiv, operator.mod, operator.mul, operator.neg, operator.sub}


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


def reached(nodes: Iterable[Node], follow: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """The nodes, and everything reached from them by `follow`, repeatedly."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += follow(node)
    return found


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """An argument given by position or by name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def subject(node: Node) -> Any:
    """The first argument of a call, by position or by name."""
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
        if isinstance(parts, Node):  # what a chunk returned, whole
            return "tensor" if given == {"tuple"} else "opaque"
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


def joined_parts(node: Node) -> tuple[Node, ...]:
    """The tensors that a torch.cat along dimension 1 joins; nothing for any other node."""
    if operation(node) not in ("cat", "concat", "concatenate"):
        return ()
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("axis", 0))
    parts = subject(node)
    if dim != 1 or "out" in node.kwargs or not isinstance(parts, (list, tuple)) or not parts:
        return ()
    return tuple(parts) if all(isinstance(p, Node) for p in parts) else ()


def write_between(anchor: Node, ordered: tuple[Node, ...]) -> str:
    """Code between the region's first view and its last node that may write to the source."""
    node = anchor
    while node is not ordered[-1]:
        node = node.next
        if node not in ordered and (node.op == "call_module" or writes(node)):
            return f"{node.name} may write to the tensor while the region still reads it"
    return ""


def writes(node: Node) -> bool:
    """True if the call's name or arguments show that it writes to a tensor."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or name in inplace_methods or node.kwargs.get("inplace") or node.kwargs.get("out"):
        return True
    place = _place_of_inplace(node.target) if node.op == "call_function" else None
    return place is not None and bool(node.args[place:][:1] == (True,))


@lru_cache(maxsize=1024)
def _place_of_inplace(function: Callable[..., Any]) -> int | None:
    """The position of the argument `inplace` of a function of torch.nn.functional; None without one."""
    if getattr(function, "__module__", None) != "torch.nn.functional":
        return None
    names = list(inspect.signature(function).parameters)
    return names.index("inplace") if "inplace" in names else None
