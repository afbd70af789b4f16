# SPDX-License-Identifier: MIT
"""Which code depends on the memory format of a tensor, and which modules keep it."""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from .aliasing import may_be_distinguished
from .calls import reached, subject
from .table import Does, names_of

__all__ = [
    "CONVOLUTION_CLASSES",
    "depends_on_layout",
    "draws",
    "draws_in",
    "is_flat",
    "is_flat_call",
    "is_view_or_copy",
    "last_of",
    "needs_layout",
    "order_matters_behind",
    "reads_memory_of",
]

_STRIDES = names_of(Does.STRIDES)
# What differs between a part of a tensor and a tensor of its own.
_PLACE = _STRIDES - {"view", "view_as"}
_VIEW_OR_COPY = names_of(Does.VIEW_OR_COPY)
_DRAWS = names_of(Does.DRAWS)
_DRAWING = (nn.Dropout, nn.AlphaDropout, nn.RReLU)
CONVOLUTION_CLASSES = (nn.modules.conv._ConvNd,)
_ONE_PIXEL = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_ONE_PIXEL += (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
_FLAT = (nn.Linear, nn.Flatten, nn.LayerNorm, nn.MultiheadAttention)
_POOLS = (F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)
_SAME_STRIDES = names_of(Does.SAME_STRIDES)


def depends_on_layout(nodes: Iterable[Node]) -> bool:
    """True if later code, before the next convolution or unknown module, may need these tensors to be contiguous."""
    found = reached(nodes, lambda node: filter(_keeps_layout, node.users))
    return any(needs_layout(user) for node in found for user in node.users)


def order_matters_behind(nodes: Iterable[Node]) -> bool:
    """True if later code asks for the layout of these tensors, or draws random numbers in the order of their memory."""
    found = reached(nodes, lambda node: filter(_keeps_layout, node.users))
    return any(needs_layout(user) or draws(user) for node in found for user in node.users)


def draws(node: Node) -> bool:
    """True for a call that gives random numbers to the elements of its tensor in the order of memory."""
    if node.op == "call_module":
        return draws_in(node.meta["module"])
    return _name(node) in _DRAWS


def draws_in(module: nn.Module) -> bool:
    """The same for a call of a module of torch; a dropout of nothing draws none."""
    return isinstance(module, _DRAWING) and getattr(module, "p", 1) != 0


def reads_memory_of(nodes: Iterable[Node]) -> str:
    """A method by which later code reads strides or memory of these tensors, or of tensors made from them; else ""."""
    found = reached(nodes, lambda node: filter(_keeps_layout, node.users))
    names = (
        str(getattr(u.target, "__name__", u.target))
        for n in found
        for u in n.users
        if u.op.startswith("call_")
    )
    return next((name for name in names if name in _PLACE), "")


def _keeps_layout(node: Node) -> bool:
    """True for calls of functions, and of torch's modules, whose result may have the format of their input."""
    if node.op != "call_module":
        return node.op in ("call_function", "call_method") and not is_flat_call(node)
    inside = list(node.meta["module"].modules())
    if any(isinstance(m, CONVOLUTION_CLASSES) for m in inside):
        return False
    known = all(type(m).__module__.startswith("torch.nn.") for m in inside)
    return known and not is_flat(last_of(node.meta["module"]))


def _name(node: Node) -> str:
    if node.op == "call_module":
        return "flatten" if type(node.meta["module"]) is nn.Flatten else ""
    return getattr(node.target, "__name__", node.target) if node.op.startswith("call") else ""


def is_view_or_copy(node: Node) -> bool:
    """True for a call of which the layout of its tensor decides whether it returns a view or a copy."""
    return _name(node) in _VIEW_OR_COPY


def needs_layout(node: Node) -> bool:
    """True for a call that may fail, or give something else, if its tensor is not contiguous."""
    name = _name(node)
    if name in _VIEW_OR_COPY:
        base = subject(node)
        return isinstance(base, Node) and may_be_distinguished(node, base)
    return name in _STRIDES and not _only_splits(node, name)


def _only_splits(node: Node, name: str) -> bool:
    """True for a view with as many sizes as an image has, which any memory format allows."""
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    return name == "view" and len(sizes) >= 4


def last_of(module: nn.Module) -> nn.Module:
    """The module that makes the result, as far as Sequentials show."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[-1]
    return module


def is_flat(module: nn.Module) -> bool:
    """True if the result has the same strides in every memory format."""
    if isinstance(module, _ONE_PIXEL):
        size = module.output_size
        return size == 1 or (isinstance(size, (tuple, list)) and set(size) == {1})
    return isinstance(module, _FLAT)


def is_flat_call(node: Node) -> bool:
    if node.target in _POOLS:
        size = node.args[1] if len(node.args) > 1 else node.kwargs.get("output_size")
        return size == 1 or (isinstance(size, (tuple, list)) and set(size) == {1})
    return getattr(node.target, "__name__", node.target) in _SAME_STRIDES
