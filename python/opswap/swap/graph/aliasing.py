# SPDX-License-Identifier: MIT
"""Which code may see that a view of a tensor was replaced by a copy: code that writes to either later."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from ..runtime.guards import hooked
from .calls import graph_kinds, operation, reached, writes
from .metadata import joined_shape
from .table import Does, functions_of, names_of

__all__ = ["escape_or_write", "may_be_distinguished", "reads_only", "returns_tensor"]

# They read their input, and what they return is new memory.
_MODULES = {
    *(getattr(nn, f"{name}{n}d") for name in ("Conv", "ConvTranspose", "BatchNorm") for n in (1, 2, 3)),
    *(getattr(nn, f"{name}Pool{n}d") for name in ("Max", "Avg", "AdaptiveMax") for n in (1, 2, 3)),
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.Linear,
    nn.Mish,
    nn.PReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
}
_FUNCTIONS = {
    *functions_of(Does.NEW_MEMORY, (torch, F)),
    joined_shape,
    operator.add,
    operator.mul,
    operator.neg,
    operator.sub,
    operator.truediv,
}
_METHODS = names_of(Does.NEW_MEMORY)


def reads_only(module: nn.Module) -> bool:
    """True if calling the module neither writes to its input nor returns a view of it."""
    if hooked(module) or getattr(module, "inplace", False):
        return False
    if type(module) is nn.Sequential:
        first = next(iter(module), None)
        return first is not None and reads_only(first)
    return type(module) in _MODULES


def returns_tensor(module: nn.Module) -> bool:
    """True if the module returns one tensor."""
    return type(module) in _MODULES and not hooked(module) and not getattr(module, "return_indices", False)


def escape_or_write(source: Node, outputs: Iterable[Node]) -> str:
    """The node behind source that may write to its memory, or through which outputs leave the graph; or "".

    outputs: views of source, the last of its users that count as such.
    """
    outputs = tuple(outputs)
    kinds = graph_kinds(source.graph)
    shared = _sharing(source, outputs, kinds)
    leaving = _sharing_after(outputs, kinds)
    position = {node: i for i, node in enumerate(source.graph.nodes)}
    for node in sorted({u for n in shared for u in n.users}, key=position.__getitem__):
        if position[node] <= position[source]:
            continue
        if node.op == "output":
            if leaving.intersection(node.all_input_nodes):
                return "the caller"
        elif not _reads(node, kinds):
            return node.name
    return ""


def may_be_distinguished(part: Node, base: Node) -> bool:
    """True if it matters whether `part` is a view of `base`: one of them is written to, then the other used."""
    kinds = graph_kinds(part.graph)
    ours = _sharing_after((part,), kinds)
    theirs = _sharing(base, (), kinds) - ours
    behind = list(part.graph.nodes)
    behind = behind[behind.index(part) + 1 :]
    for i, node in enumerate(behind):
        given = set(node.all_input_nodes)
        if node.op == "output" or _reads(node, kinds):
            continue
        for written, other in ((ours, theirs), (theirs, ours)):
            if given & written and any(other.intersection(n.all_input_nodes) for n in behind[i + 1 :]):
                return True
    return False


def _reads(node: Node, kinds: dict[Node, str]) -> bool:
    """True if the node surely writes to none of its inputs."""
    if writes(node):
        return False
    if node.op == "call_module" and type(node.meta["module"]) is nn.Identity:
        return not hooked(node.meta["module"])
    return kinds[node] != "opaque" or _makes_new(node, kinds)


def _makes_new(node: Node, kinds: dict[Node, str]) -> bool:
    """True if what the node returns shares no memory with what it is given."""
    if node.op == "call_module":
        return reads_only(node.meta["module"])
    if kinds[node] == "size" or operation(node) in ("cat", "concat", "concatenate", "stack", "clone"):
        return True
    if writes(node):
        return False
    return (node.op == "call_method" and node.target in _METHODS) or (
        node.op == "call_function" and node.target in _FUNCTIONS
    )


def _sharing_after(nodes: Iterable[Node], kinds: dict[Node, str]) -> set[Node]:
    """The nodes and what may be a view of them."""
    return reached(nodes, lambda node: _views(node, kinds))


def _views(node: Node, kinds: dict[Node, str]) -> list[Node]:
    """What may be a view of this node, of those that use it."""
    return [u for u in node.users if u.op != "output" and not _makes_new(u, kinds)]


def _alike(a: Node, b: Node) -> bool:
    """False for arguments that were seen with different dtypes."""
    seen = [getattr(n.meta.get("example_value"), "dtype", None) for n in (a, b)]
    return None in seen or seen[0] == seen[1]


def _sharing(source: Node, outputs: tuple[Node, ...], kinds: dict[Node, str]) -> set[Node]:
    """Everything that may share memory with source; all arguments of one dtype count as one memory."""

    def follow(node: Node) -> list[Node]:
        behind = _views(node, kinds)
        if node.op == "placeholder":
            return behind + [n for n in source.graph.nodes if n.op == "placeholder" and _alike(n, node)]
        return behind if _makes_new(node, kinds) else behind + node.all_input_nodes

    return reached([source, *outputs], follow)
