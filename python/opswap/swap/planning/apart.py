# SPDX-License-Identifier: MIT
"""Activations that stay apart from the normalisation whose result they read, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from torch import fx, nn

from ..report import Site
from ..rules.activation import RELU, RELU6, activation, gated
from ..rules.norm import NORMS
from ..runtime.guards import call_problem
from .block_ends import ends_with_norm, is_norm_call, last_module

__all__ = ["RULE", "Key", "activations_apart", "key_of", "norm_at_end"]

Key = tuple[str, str]  # path of a module, and "file:line"

RULE = "batch_norm_act"
_READ_TWICE = (
    "something else reads the result of the normalisation too, at {}: if all that reads it is this activation, call it "
    "once and share the result"
)
_ALONE = "; torch is as fast on the activation alone, which takes as long as a copy"
_IN_A_BLOCK = (
    "the normalisation is the end of the forward of {} ({}), which is not inlined here: let that forward call the "
    "activation"
)


def key_of(node: fx.Node, name: str) -> Key:
    """Where a node is in the model. Args: name: path of the module that was captured."""
    path = node.target if node.op == "call_module" else node.meta["owner"]
    return ".".join(p for p in (name, str(path)) if p), node.meta["source"]


def activations_apart(
    graph: fx.Graph, name: str, joined: Collection[Key], ends_with: Callable[[nn.Module], nn.Module | None]
) -> Iterator[Site]:
    """The activations that read a normalisation and are not in `joined`.

    Args: name: path of the module that was captured. ends_with: finds the normalisation at the end of a block.
    """
    for node in graph.nodes:
        before = _before(node)
        if before is None or key_of(node, name) in joined:
            continue
        block = before.meta["module"] if before.op == "call_module" else None
        norm = None if block is None else ends_with(block)
        if block is not None and norm is None:
            continue
        path, _ = key_of(before if block is not None and block is norm else node, name)
        reason = _why(node, before, block, norm)
        if reason:
            yield Site(path, RULE, key_of(node, name)[1], False, reason)


def _before(node: fx.Node) -> fx.Node | None:
    """What an activation reads, past Identities; None for everything but a call."""
    if activation(node) is None:
        return None
    (before,) = node.all_input_nodes
    while (
        before.op == "call_module" and type(before.meta["module"]) is nn.Identity and before.all_input_nodes
    ):
        before = before.all_input_nodes[0]
    return before if is_norm_call(before) or before.op == "call_module" else None


def _why(node: fx.Node, before: fx.Node, block: nn.Module | None, norm: nn.Module | None) -> str:
    others = [u for u in before.users if u is not node]
    if others and gated(before) is None:
        read_at = _READ_TWICE.format(", ".join(dict.fromkeys(_place(u) for u in others)))
        return read_at + _ALONE * (activation(node) in (RELU, RELU6))
    modules = {
        before.target: block,
        f"the normalisation at the end of {before.target}": norm,
        node.target: node.meta.get("module"),
    }
    problems = (call_problem(name, m) for name, m in modules.items() if m is not None)
    if problem := next(filter(None, problems), ""):
        return problem
    own = block is not None and type(block) not in NORMS
    return _IN_A_BLOCK.format(type(block).__name__, before.target) if own else ""


def _place(node: fx.Node) -> str:
    return str(node.meta.get("source") or node.op)


def norm_at_end(
    module: nn.Module | None, graphs: Callable[[nn.Module], Collection[fx.Graph] | None]
) -> nn.Module | None:
    """The normalisation whose result a module returns: torch's, or one of a forward that ends with F.batch_norm; or
    None.

    Args: graphs: of the captured paths of a module, None if it was not captured.
    """
    if module is None or type(module) in NORMS:
        return module
    found = graphs(module)
    if found is None:
        row = list(module.children()) if type(module) is nn.Sequential else []
        return norm_at_end(row[-1], graphs) if row else None
    if any(map(ends_with_norm, found)):
        return module
    ends = (last_module(graph) for graph in found)
    return next((n for last in ends if last is not module and (n := norm_at_end(last, graphs))), None)
