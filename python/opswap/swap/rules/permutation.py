# SPDX-License-Identifier: MIT
"""A fixed permutation of the channels by an index: x[:, order], index_select(1, order)."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F
from opswap.ops.permutation import is_permutation, shuffle_groups, take_channels

from ..rule import Refusal, Region, Replacement, Rule, Shapes

__all__ = ["RULES", "indexes"]


def indexes(index: Tensor) -> bool:
    """True for a tensor of numbers of channels that opswap may read."""
    return index.dim() == 1 and index.dtype is torch.int64 and index.device.type == "cpu"


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
    """An order that is a constant in the code cannot change; one in a buffer may change, and is read on every call."""
    buffer = len(region.inputs) > 1
    index = region.inputs[1].meta["value"].tolist() if buffer else _index(region.main)
    numbers = isinstance(index, list) and all(type(i) is int for i in index)
    if not numbers or not is_permutation(index):
        raise Refusal("its index is not a permutation of the channels", report=False)
    if buffer:
        names = {"indexes": indexes, "take_channels": take_channels}
        return Replacement("x0.dim() > 1 and indexes(x1)", "take_channels(x0, x1)", names)
    order = tuple(index)
    condition = f"x0.dim() > 1 and x0.shape[1] == {len(order)}"
    groups = shuffle_groups(order)
    if groups:
        names = {"channel_shuffle": F.channel_shuffle}
        return Replacement(condition, f"channel_shuffle(x0, {groups})", names)
    names = {"channel_permutation": F.channel_permutation}
    return Replacement(condition, f"channel_permutation(x0, {order})", names)


class _Reversed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, list(range(115, -1, -1))]


RULES = (
    Rule("channel_permutation", True, _find, _prove, example=lambda: (_Reversed(), ((16, 116, 28, 28),))),
)
