# SPDX-License-Identifier: MIT
"""torch's BatchNorm, alone or with the activation behind it: its modules, and calls of the function.

Of modules only torch's own are taken, whose parameters and flags are read on every call. clamp(min=0) is no relu:
where an element is exactly at the bound, it lets the gradient through.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import nn
from torch.fx import Graph, Node

from opswap import functional as F
from opswap.nn.norm import apply_norm

from ..match import Region
from ..prove import Refusal
from ..runtime import CONVOLUTIONS, NORMS, activation_of, hooked, normable, owned, poolable, unhooked
from .rule import Replacement, Rule, Shapes

__all__ = ["RULES"]

_FUNCTIONS = {
    torch.relu: "relu",
    torch.relu_: "relu",
    torch_functional.relu: "relu",
    torch_functional.relu6: "relu6",
    torch_functional.hardswish: "hardswish",
}
_HARDTANH = (torch_functional.hardtanh, torch_functional.hardtanh_)
_METHODS = {"relu": "relu", "relu_": "relu"}


def _bounds(
    input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> tuple[Any, Any]:
    """The signature of torch.nn.functional.hardtanh."""
    return min_val, max_val


def _activation(node: Node) -> str | None:
    """The name of the activation that a node computes of its only input."""
    if len(node.all_input_nodes) != 1 or "out" in node.kwargs:
        return None
    if node.op == "call_module":
        return activation_of(node.meta["module"])
    if node.op == "call_method":
        return _METHODS.get(node.target)
    if node.op == "call_function" and node.target in _HARDTANH:
        return "relu6" if _bounds(*node.args, **node.kwargs) == (0, 6) else None
    return _FUNCTIONS.get(node.target) if node.op == "call_function" else None


def _find_act(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        if node.op != "call_module" or type(node.meta["module"]) not in NORMS:
            continue
        users = [u for u in node.users if _activation(u)]
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
    activation = _activation(act)
    calls = [f"m{i}" for i, n in enumerate(region.nodes) if n.op == "call_module"]
    condition = f"unhooked({', '.join(calls)}) and normable(m0, x0)"
    names: dict[str, Any] = {"unhooked": unhooked, "normable": normable, "apply_norm": apply_norm}
    if act.op == "call_module":
        condition += f" and activation_of(m1) == {activation!r}"
        names["activation_of"] = activation_of
    inplace = ""
    if len(region.modules) > len(calls):
        inplace = f", inplace=owned(x0, m{len(calls)})"
        names["owned"] = owned
    return Replacement(condition, f"apply_norm(m0, x0, {activation!r}{inplace})", names)


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


def _is_batch_norm(node: Node) -> bool:
    return node.op == "call_function" and node.target is torch_functional.batch_norm


def _call(nodes: tuple[Node, ...]) -> Region:
    """A call of the function, and what works on nothing but its result."""
    problem = "an intermediate result is used elsewhere" if len(nodes[0].users) >= len(nodes) > 1 else ""
    return Region(tuple(nodes[0].all_input_nodes), None, nodes, nodes[-1:], nodes[0], nodes[-1], problem)


def _find_call_act(graph: Graph) -> Iterator[Region]:
    for node in filter(_is_batch_norm, graph.nodes):
        users = [u for u in node.users if u.op != "call_module" and _activation(u)]
        if users:
            yield _call((node, users[0]))


def _find_call(graph: Graph) -> Iterator[Region]:
    return (_call((node,)) for node in filter(_is_batch_norm, graph.nodes))


def _arguments(region: Region) -> dict[str, str]:
    """The arguments of the function as Python text, by their names."""
    node = region.nodes[0]
    bound = inspect.signature(torch_functional.batch_norm).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    names = {n: f"x{i}" for i, n in enumerate(region.inputs)}
    plain = (bool, int, float, type(None))
    strange = [k for k, v in bound.arguments.items() if v not in region.inputs and type(v) not in plain]
    if strange:
        raise Refusal(f"its argument {strange[0]!r} is a {type(bound.arguments[strange[0]]).__name__}")
    return {k: names[v] if isinstance(v, Node) else repr(v) for k, v in bound.arguments.items()}


def _prove_call(region: Region, shapes: Shapes) -> Replacement:
    """Alone, it is faster than torch's while it trains, as the modules are; see `_ALONE`."""
    arguments = _arguments(region)
    input = arguments.pop("input")
    options = [f"{name}={text}" for name, text in arguments.items()]
    condition = f"poolable({input})"
    if len(region.nodes) > 1:
        options.append(f"activation={_activation(region.nodes[1])!r}")
    else:
        condition = f"{arguments['training']} and {condition}"
    result = f"batch_norm_act({', '.join([input, *options])})"
    return Replacement(condition, result, {"batch_norm_act": F.batch_norm_act, "poolable": poolable})


# With given statistics and a new result torch's own is as fast: both read and write at the speed of memory.
_ALONE = Replacement(
    "m0.training and normable(m0, x0)",
    "apply_norm(m0, x0, None)",
    {"normable": normable, "apply_norm": apply_norm},
)


def _example(*after: nn.Module) -> tuple[nn.Module, tuple[tuple[int, ...], ...]]:
    return nn.Sequential(nn.BatchNorm2d(58), *after), ((32, 58, 28, 28),)


RULES = (
    Rule("batch_norm_act", False, _find_act, _prove_act, calls=NORMS, example=lambda: _example(nn.ReLU())),
    Rule("batch_norm_in_place", False, _find_in_place, _prove_in_place, calls=NORMS, inference=True),
    Rule("batch_norm_act", False, _find_call_act, _prove_call),
    Rule("batch_norm", False, modules=NORMS, whole=_ALONE, example=_example),
    Rule("batch_norm", False, _find_call, _prove_call),
)
