# SPDX-License-Identifier: MIT
"""torch's BatchNorm modules, alone or with the activation behind them.

Only torch's own are taken, whose parameters and flags are read on every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap.nn.norm import apply_norm
from opswap.ops._function import plain_cpu

from ..rule import Region, Replacement, Rule, Shapes
from ..runtime.guards import hooked, unhooked
from ..runtime.state import stock_class
from .activation import activation, activation_of
from .conditions import CONVOLUTIONS, poolable, trains

__all__ = ["RULES", "normable", "owned"]

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def normable(norm: nn.Module, input: Any) -> bool:
    """True for one of torch's own BatchNorms, and a tensor that opswap's batch normalisation knows."""
    return stock_class(norm) in NORMS and poolable(input)


def owned(output: Tensor, convolution: nn.Module) -> bool:
    """True where nobody but the caller holds this convolution's output, not even for a gradient."""
    fresh = stock_class(convolution) in CONVOLUTIONS and unhooked(convolution)
    return fresh and not trains(output) and plain_cpu((output,))


def _find_act(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        if node.op != "call_module" or type(node.meta["module"]) not in NORMS:
            continue
        users = [u for u in node.users if activation(u)]
        if not users or len(node.all_input_nodes) != 1:
            continue
        pair = (node, users[0])
        calls = tuple(n for n in pair if n.op == "call_module")
        inputs = tuple(node.all_input_nodes)
        yield Region(
            inputs, None, pair, pair[1:], node, pair[1], _problem(pair), calls + _producer(inputs[0])
        )


def _problem(pair: tuple[Node, Node]) -> str:
    if len(pair[0].users) > 1:
        return "an intermediate result is used elsewhere"
    for node in pair:
        if node.op == "call_module" and hooked(node.meta["module"]):
            return f"{node.target} has hooks: its call is not merged with what is around it"
    return ""


def _producer(node: Node) -> tuple[Node, ...]:
    """The call of a convolution whose output nothing but the normalisation reads."""
    convolution = node.op == "call_module" and type(node.meta["module"]) in CONVOLUTIONS
    return (node,) if convolution and len(node.users) == 1 else ()


def _prove_act(region: Region, shapes: Shapes) -> Replacement:
    """The graph holds torch's own modules, so that no run has to show what they compute."""
    act = region.nodes[1]
    name = activation(act)
    calls = [f"m{i}" for i, n in enumerate(region.nodes) if n.op == "call_module"]
    condition = f"unhooked({', '.join(calls)}) and normable(m0, x0)"
    names: dict[str, Any] = {"unhooked": unhooked, "normable": normable, "apply_norm": apply_norm}
    if act.op == "call_module":
        condition += f" and activation_of(m1) == {name!r}"
        names["activation_of"] = activation_of
    inplace = ""
    if len(region.modules) > len(calls):
        inplace = f", inplace=owned(x0, m{len(calls)})"
        names["owned"] = owned
    return Replacement(condition, f"apply_norm(m0, x0, {name!r}{inplace})", names)


def _find_in_place(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        if node.op != "call_module" or type(node.meta["module"]) not in NORMS:
            continue
        inputs = tuple(node.all_input_nodes)
        convolution = _producer(inputs[0]) if len(inputs) == 1 else ()
        if convolution:
            yield Region(inputs, None, (node,), (node,), node, node, "", (node, *convolution))


def _prove_in_place(region: Region, shapes: Shapes) -> Replacement:
    return Replacement(
        "not m0.training and unhooked(m0) and normable(m0, x0) and owned(x0, m1)",
        "apply_norm(m0, x0, None, inplace=True)",
        {"unhooked": unhooked, "normable": normable, "owned": owned, "apply_norm": apply_norm},
    )


# With given statistics and a new result torch's own is as fast: both read and write at the speed of memory.
_ALONE = Replacement(
    "m0.training and poolable(x0)",
    "apply_norm(m0, x0, None)",
    {"poolable": poolable, "apply_norm": apply_norm},
)


def _example(*after: nn.Module) -> tuple[nn.Module, tuple[tuple[int, ...], ...]]:
    return nn.Sequential(nn.BatchNorm2d(58), *after), ((32, 58, 28, 28),)


RULES = (
    Rule("batch_norm_act", False, _find_act, _prove_act, calls=NORMS, example=lambda: _example(nn.ReLU())),
    Rule("batch_norm_in_place", False, _find_in_place, _prove_in_place, calls=NORMS, inference=True),
    Rule("batch_norm", False, modules=NORMS, whole=_ALONE, example=_example),
)
