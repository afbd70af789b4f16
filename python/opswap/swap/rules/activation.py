# SPDX-License-Identifier: MIT
"""Which activation a node of a graph computes: a module, a function or a method.

clamp(min=0) is no relu: where an element is exactly at the bound, it lets the gradient through.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import nn
from torch.fx import Node

from ..runtime.state import stock_class

__all__ = ["activation", "activation_of"]

_ACTIVATIONS = {nn.ReLU: "relu", nn.ReLU6: "relu6", nn.Hardswish: "hardswish"}


def activation_of(module: nn.Module) -> str | None:
    """The name of the activation that this module is, as `opswap.functional.batch_norm_act` calls it."""
    cls = stock_class(module)
    if cls is nn.Hardtanh:
        return "relu6" if module.min_val == 0 and module.max_val == 6 else None
    return _ACTIVATIONS.get(cls)


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


def activation(node: Node) -> str | None:
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
