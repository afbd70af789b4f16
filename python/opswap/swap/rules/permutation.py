# SPDX-License-Identifier: MIT
"""A fixed permutation of the channels by an index: x[:, order], index_select(1, order)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F
from opswap.ops._layout import is_strided
from opswap.ops.permutation import is_permutation, shuffle_groups, take_channels

from ..graph.layout import depends_on_layout
from ..rule import Refusal, Region, Replacement, Rule, Shapes, named
from .channels.conditions import give_contiguous

__all__ = ["RULES", "indexes", "strides_fall"]


def indexes(index: Tensor) -> bool:
    """True for a tensor of numbers of channels that opswap may read."""
    return index.dim() == 1 and index.dtype is torch.int64 and index.device.type == "cpu"


def strides_fall(input: Tensor) -> bool:
    """True if torch's input[:, index] is contiguous: it keeps the order of the other dimensions' strides and sizes."""
    if not is_strided(input):
        return False
    first, _, *rest = zip(input.stride(), input.shape, strict=True)
    return all(a >= b for a, b in itertools.pairwise((first, *rest)))


def _index(node: Node) -> Any:
    """The index by which the node selects channels: a Node, a list of numbers, or None for another call."""
    args = [*node.args, *(node.kwargs[k] for k in ("dim", "index") if k in node.kwargs)]
    if node.op == "call_function" and node.target is operator.getitem and isinstance(args[1], tuple):
        all_images, *index = args[1]
        return index[0] if all_images == slice(None) and len(index) == 1 else None
    selects = node.op == "call_method" and node.target == "index_select"
    selects = selects or (node.op == "call_function" and node.target is torch.index_select)
    return args[2] if selects and len(args) == 3 and args[1] == 1 else None


def _find(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        index = _index(node)
        buffer = isinstance(index, Node) and isinstance(index.meta.get("value"), Tensor)
        if buffer or isinstance(index, list):
            inputs = (node.args[0], index) if buffer else (node.args[0],)
            yield Region(inputs=inputs, nodes=(node,), outputs=(node,), anchor=node, main=node)


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """An order that is a constant in the code cannot change; one in a buffer may change, and is read on every call.

    torch's results are contiguous; of an order that is a shuffle, opswap's keep channels_last.
    """
    buffer = len(region.inputs) > 1
    index = region.inputs[1].meta["value"].tolist() if buffer else _index(region.main)
    numbers = isinstance(index, list) and all(type(i) is int for i in index)
    if not numbers or not is_permutation(index):
        raise Refusal("its index is not a permutation of the channels", report=False)
    order = tuple(index)
    groups = shuffle_groups(order)
    if buffer:
        function, condition, result = take_channels, "x0.dim() > 1 and indexes(x1)", "take_channels(x0, x1)"
    else:
        condition = f"x0.dim() > 1 and x0.shape[1] == {len(order)}"
        function = F.channel_shuffle if groups else F.channel_permutation
        result = f"{function.__name__}(x0, {groups or order})"
    condition += f" and {'strides_fall' if region.main.target is operator.getitem else 'is_strided'}(x0)"
    contiguous = "give_contiguous((x0,))" if buffer or groups else ""
    if contiguous and depends_on_layout(region.outputs):
        condition += f" and {contiguous}"
    names = named(function, give_contiguous, indexes, is_strided, strides_fall)
    return Replacement(condition, result, names, contiguous)


class _Reversed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, list(range(115, -1, -1))]


RULES = (
    Rule("channel_permutation", True, _find, _prove, example=lambda: (_Reversed(), ((16, 116, 28, 28),))),
)
