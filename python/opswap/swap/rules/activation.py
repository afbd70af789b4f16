# SPDX-License-Identifier: MIT
"""Which activation a node of a graph computes: a module, a function, a method, or a product with a sigmoid.

An activation is a name and its parameters, as `opswap.ops.norm.spell` writes them. clamp(min=0) is not relu: if an
element is exactly at the bound, it lets the gradient through.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import nn
from torch.fx import Graph, Node

__all__ = ["SILU", "Activation", "activation", "activation_of", "gated", "is_activation"]

Activation = tuple[Any, ...]  # name, parameters

RELU, RELU6, HARDSWISH = ("relu",), ("relu6",), ("hardswish",)
HARDSIGMOID, SIGMOID, SILU, MISH = ("hardsigmoid",), ("sigmoid",), ("silu",), ("mish",)
_PLAIN = {
    nn.ReLU: RELU,
    nn.Hardswish: HARDSWISH,
    nn.Hardsigmoid: HARDSIGMOID,
    nn.Sigmoid: SIGMOID,
    nn.SiLU: SILU,
    nn.Mish: MISH,
}


# The signatures of torch's functions: what a call computes, None for what is not known. In place, torch finds the
# gradient of a negative slope from a result that does not determine it, and raises.


def _hardtanh(
    input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Activation | None:
    if not _numbers(min_val, max_val) or min_val > max_val:  # torch's function raises for such bounds
        return None
    return RELU6 if min_val == 0 and max_val == 6 else ("hardtanh", min_val, max_val)


def _leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Activation | None:
    if not _numbers(negative_slope) or (inplace and negative_slope < 0):
        return None
    return "leaky_relu", negative_slope


def _elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Activation | None:
    return None if not _numbers(alpha) or (inplace and alpha < 0) else ("elu", alpha)


def _gelu(input: Any, approximate: str = "none") -> Activation | None:
    return {"none": ("gelu",), "tanh": ("gelu_tanh",)}.get(approximate)


def _softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Activation | None:
    return ("softplus", beta, threshold) if _numbers(beta, threshold) else None


def _numbers(*values: Any) -> bool:
    """True for numbers that float32 can hold: no tensor, NaN or infinity."""
    return all(type(v) in (int, float) and abs(v) < 3e38 for v in values)


def activation_of(module: nn.Module) -> Activation | None:
    """The activation of this module."""
    cls = type(module)
    if cls in _PLAIN:
        return _PLAIN[cls]
    if cls is nn.Hardtanh or cls is nn.ReLU6:  # whose bounds may be set, too
        return _hardtanh(None, module.min_val, module.max_val)
    if cls is nn.LeakyReLU:
        return _leaky_relu(None, module.negative_slope, module.inplace)
    if cls is nn.ELU:
        return _elu(None, module.alpha, module.inplace)
    if cls is nn.GELU:
        return _gelu(None, module.approximate)
    return _softplus(None, module.beta, module.threshold) if cls is nn.Softplus else None


_FUNCTIONS: dict[Any, Activation] = {
    torch.relu: RELU,
    torch.relu_: RELU,
    torch_functional.relu: RELU,
    torch_functional.relu6: RELU6,
    torch_functional.hardswish: HARDSWISH,
    torch_functional.hardsigmoid: HARDSIGMOID,
    torch.sigmoid: SIGMOID,
    torch.sigmoid_: SIGMOID,
    torch_functional.sigmoid: SIGMOID,
    torch.special.expit: SIGMOID,
    torch_functional.silu: SILU,
    torch_functional.mish: MISH,
}
_WITH_PARAMETERS: dict[Any, Callable[..., Activation | None]] = {
    torch_functional.hardtanh: _hardtanh,
    torch_functional.hardtanh_: _hardtanh,
    torch_functional.leaky_relu: _leaky_relu,
    torch_functional.leaky_relu_: lambda input, slope=0.01: _leaky_relu(input, slope, True),
    torch_functional.elu: _elu,
    torch_functional.elu_: lambda input, alpha=1.0: _elu(input, alpha, True),
    torch_functional.gelu: _gelu,
    torch_functional.softplus: _softplus,
}
_METHODS = {"relu": RELU, "relu_": RELU, "sigmoid": SIGMOID, "sigmoid_": SIGMOID}


def activation(node: Node) -> Activation | None:
    """The activation that a node computes of its only input."""
    if len(node.all_input_nodes) != 1 or "out" in node.kwargs:
        return None
    if node.op == "call_module":
        return activation_of(node.meta["module"])
    if node.op == "call_method":
        return _METHODS.get(node.target)
    if node.op != "call_function":
        return None
    if node.target not in _WITH_PARAMETERS:
        return _FUNCTIONS.get(node.target)
    try:
        return _WITH_PARAMETERS[node.target](*node.args, **node.kwargs)
    except TypeError:  # arguments that are not of this signature
        return None


def gated(node: Node) -> tuple[Node, Node] | None:
    """The sigmoid of a node and the product of both, if nothing else uses the node: a SiLU."""
    if len(node.users) != 2:
        return None
    for sigmoid in node.users:
        if activation(sigmoid) != SIGMOID or str(sigmoid.target).endswith("_") or len(sigmoid.users) != 1:
            continue
        (product,) = sigmoid.users
        if product in node.users and _multiplies(product) and set(product.args) == {node, sigmoid}:
            return sigmoid, product
    return None


def is_activation(graph: Graph) -> bool:
    """True if a forward only computes an activation of its only argument."""
    arguments = [n for n in graph.nodes if n.op == "placeholder"]
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    (result,) = (n.args[0] for n in graph.nodes if n.op == "output")
    if len(arguments) != 1 or not nodes or result is not nodes[-1]:
        return False
    if len(nodes) == 1:
        return nodes[0].op != "call_module" and activation(nodes[0]) is not None
    return gated(arguments[0]) == tuple(nodes)


def _multiplies(node: Node) -> bool:
    if len(node.args) != 2 or node.kwargs:
        return False
    function = node.op == "call_function" and node.target in (operator.mul, torch.mul, torch.multiply)
    return function or (node.op == "call_method" and node.target in ("mul", "multiply", "__mul__"))
