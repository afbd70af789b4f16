# SPDX-License-Identifier: MIT
"""What a forward begins and ends with: whether a rule may join it with the code before or behind it."""

from __future__ import annotations

from collections.abc import Collection

from torch import fx, nn

from ..graph.calls import graph_kinds
from ..rules.activation import activation, activation_of
from ..rules.norm import NORMS
from ..rules.norm_functional import is_batch_norm

__all__ = [
    "before_identities",
    "begins_with_activation",
    "continues",
    "cuts_its_input",
    "ends_with_norm",
    "ends_with_normed",
    "is_continuation",
    "is_norm_call",
    "joins_its_output",
    "last_module",
    "only_reader",
]


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


def continues(module: nn.Module | None, called: Collection[type]) -> bool:
    """True if a rule may join this module with the one that the block before it ends with.

    Args: called: classes of torch whose calls the rules look for.
    """
    acts = module is not None and activation_of(module) is not None
    return type(module) in called or (bool(called) and acts)


def is_continuation(node: fx.Node, called: Collection[type]) -> bool:
    """`continues` for a call of a module, or of an activation."""
    if node.op == "call_module" and type(node.meta["module"]) in called:
        return True
    return bool(called) and activation(node) is not None


def begins_with_activation(graph: fx.Graph, called: Collection[type]) -> bool:
    """True if an activation, which a rule may join with what comes before, is all that reads the forward's input."""
    reader = only_reader(graph)
    return bool(called) and reader is not None and activation(reader) is not None


def only_reader(graph: fx.Graph) -> fx.Node | None:
    """What reads the forward's input, if it has one input and nothing else reads it."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    readers = [u for n in inputs for u in n.users]
    return readers[0] if len(inputs) == len(readers) == 1 else None


def last_module(graph: fx.Graph) -> nn.Module | None:
    """The module whose result the forward returns, but for Identities, None if it returns something else."""
    last = _last_call(graph)
    return last.meta["module"] if isinstance(last, fx.Node) and last.op == "call_module" else None


def ends_with_norm(graph: fx.Graph) -> bool:
    """True if the forward returns the result of F.batch_norm, but for Identities, as timm's BatchNormAct2d does."""
    return is_norm_call(_last_call(graph))


def ends_with_normed(graph: fx.Graph) -> bool:
    """True if the forward returns the result of a normalisation, or of an activation of one, but for Identities."""
    last = _last_call(graph)
    if isinstance(last, fx.Node) and activation(last) is not None:
        last = before_identities(last.args[0])
    return is_norm_call(last) or (
        isinstance(last, fx.Node) and last.op == "call_module" and type(last.meta["module"]) in NORMS
    )


def is_norm_call(node: object) -> bool:
    """True for a call of F.batch_norm."""
    return isinstance(node, fx.Node) and is_batch_norm(node)


def _last_call(graph: fx.Graph) -> object:
    """What the forward returns, before it went through Identities."""
    return before_identities(_result(graph))


def before_identities(node: object) -> object:
    """What went through Identities to become the result of this node."""
    while isinstance(node, fx.Node) and node.op == "call_module":
        if type(node.meta["module"]) is not nn.Identity or not node.args:
            return node
        node = node.args[0]
    return node


def _result(graph: fx.Graph) -> object:
    (result,) = (n.args[0] for n in graph.nodes if n.op == "output")
    return result
