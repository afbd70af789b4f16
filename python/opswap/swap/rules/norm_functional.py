# SPDX-License-Identifier: MIT
"""Calls of torch.nn.functional.batch_norm, alone or with the activation after it, as Dynamo's graphs have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch.nn.functional as torch_functional
from torch.fx import Graph, Node

from opswap import functional as F
from opswap.ops.norm import vector_misread

from ..rule import Region, Replacement, Rule, Shapes, argument_texts, bound_arguments, named
from ..runtime.guards import unhooked
from .conditions import normed_alone_fast, normed_fast, poolable
from .norm import act_of, behind, region_of

__all__ = [
    "RULES",
    "call_arguments",
    "is_batch_norm",
    "trains_with_statistics",
    "uses_statistics_of_input",
]


def is_batch_norm(node: Node) -> bool:
    return node.op == "call_function" and node.target is torch_functional.batch_norm


def _find_call_act(graph: Graph) -> Iterator[Region]:
    for node in filter(is_batch_norm, graph.nodes):
        after = behind(node)
        if after:
            yield region_of((node, *after))


def _find_call(graph: Graph) -> Iterator[Region]:
    return (region_of((node,)) for node in filter(is_batch_norm, graph.nodes))


def uses_statistics_of_input(node: Node) -> bool:
    """False for a call that always normalises with running statistics."""
    return bound_arguments(node, torch_functional.batch_norm)["training"] is not False


def trains_with_statistics(node: Node) -> bool:
    """True for a call that always normalises with the input's statistics, and moves running statistics."""
    given = bound_arguments(node, torch_functional.batch_norm)
    return given["training"] is True and None not in (given["running_mean"], given["running_var"])


def call_arguments(node: Node, names: Mapping[Node, str]) -> dict[str, str]:
    """The arguments of a call of the function as Python text, by their names. Args: names: of the region's inputs."""
    return argument_texts(node, torch_functional.batch_norm, names)


def _prove_call(region: Region, shapes: Shapes) -> Replacement:
    """Alone, it is faster than torch's while it trains, as the modules are; see rules/norm.py."""
    arguments = call_arguments(region.nodes[0], region.names)
    input = arguments.pop("input")
    options = [f"{name}={text}" for name, text in arguments.items()]
    vectors = ", ".join(arguments[name] for name in ("weight", "running_mean", "running_var"))
    misread = f"vector_misread({input}, {vectors})"
    names = named(F.batch_norm_act, poolable, normed_fast, normed_alone_fast, unhooked, vector_misread)
    if len(region.nodes) > 1:
        name, still, more = act_of(region)
        names |= more
        options.append(f"activation={name!r}")
        calls = [f"m{i}" for i, _ in enumerate(region.modules)]
        hooks = f"unhooked({', '.join(calls)}) and " if calls else ""
        condition = f"{hooks}poolable({input}) and ({misread} or normed_fast({input})){still}"
    else:
        wins = f"{arguments['training']} and normed_alone_fast({input})"
        condition = f"poolable({input}) and ({misread} or {wins})"
    result = f"batch_norm_act({', '.join([input, *options])})"
    return Replacement(condition, result, names)


RULES = (
    Rule("batch_norm_act", False, _find_call_act, _prove_call),
    Rule("batch_norm", False, _find_call, _prove_call),
)
