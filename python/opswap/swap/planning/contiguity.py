# SPDX-License-Identifier: MIT
"""Which code of a model needs contiguous tensors, as a shuffle that is spelled out always returns.

Ours keeps channels_last, and a later `view` may then fail that went well before. Where a convolution stands between
the two, its weights decide as well: in a model whose weights are in channels_last, that view fails anyway.
"""

from __future__ import annotations

import enum
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, Node

from opswap.ops._layout import suggest_memory_format

from ..graph.calls import subject
from ..graph.layout import CONVOLUTION_CLASSES, is_flat, is_flat_call, last_of, needs_layout
from ..rule import Region, Replacement
from ..rules.conditions import CONVOLUTIONS

__all__ = ["Demand", "demand_of", "meant_for_channels_last", "restricted"]


def meant_for_channels_last(module: nn.Module) -> bool:
    """True if the first convolution in the module has its weights in channels_last."""
    for m in module.modules():
        if isinstance(m, CONVOLUTIONS):
            return suggest_memory_format(m.weight) is not torch.contiguous_format
    return False


# torch's results are contiguous, opswap's are not.
_MADE_CONTIGUOUS = (nn.InstanceNorm2d, nn.InstanceNorm3d)


class Demand(enum.IntEnum):
    """How much of the model has to stay contiguous where it was."""

    NONE = 0
    BEHIND_CONVOLUTIONS = 1
    AT_ONCE = 2


def demand_of(graph: Graph, whole: bool) -> Demand:
    """What one captured forward needs. Args: whole: it is the model's own, whose arguments no shuffle made."""
    asked = (_before(subject(n), whole) for n in graph.nodes if needs_layout(n))
    return max(asked, default=Demand.NONE)


def _before(node: Node, whole: bool) -> Demand:
    """Where the layout of a tensor comes from, walking back over what keeps the layout of its input."""
    found = Demand.NONE
    seen: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in seen or n.op == "get_attr":
            continue
        seen.add(n)
        if n.op == "placeholder":
            found = max(found, Demand.NONE if whole else Demand.AT_ONCE)
        elif n.op == "call_module":
            here = _of_module(n.meta["module"])
            found = max(found, here)
            if here is Demand.NONE and not is_flat(last_of(n.meta["module"])):
                stack += n.all_input_nodes
        elif n.target is F.instance_norm:
            found = Demand.AT_ONCE
        elif not is_flat_call(n):
            stack += n.all_input_nodes
    return found


def _of_module(module: nn.Module) -> Demand:
    last = last_of(module)
    if isinstance(last, _MADE_CONTIGUOUS):
        return Demand.AT_ONCE
    if isinstance(last, CONVOLUTION_CLASSES):
        return Demand.BEHIND_CONVOLUTIONS
    if type(last).__module__.startswith("torch.nn."):
        several = last is not module and any(isinstance(m, CONVOLUTION_CLASSES) for m in module.modules())
        return Demand.BEHIND_CONVOLUTIONS if several and not is_flat(last) else Demand.NONE
    return Demand.AT_ONCE


def restricted(region: Region, replacement: Replacement, demand: Demand) -> tuple[Region, Replacement]:
    """The replacement, taken only if its outputs are contiguous.

    Where the demand is behind convolutions, also if their weights tell that channels_last is meant.
    """
    condition = replacement.contiguous
    witness = _witness(region.anchor.graph) if demand is Demand.BEHIND_CONVOLUTIONS else None
    names = dict(replacement.names)
    if witness is not None:
        condition = f"({condition} or meant_for_channels_last(m{len(region.modules)}))"
        names["meant_for_channels_last"] = meant_for_channels_last
        region = replace(region, modules=(*region.modules, witness))
    return region, replace(replacement, condition=f"{replacement.condition} and {condition}", names=names)


def _witness(graph: Graph) -> Node | None:
    """A call of a module with a convolution in it."""
    for node in graph.nodes:
        if node.op == "call_module" and any(
            isinstance(m, CONVOLUTION_CLASSES) for m in node.meta["module"].modules()
        ):
            return node
    return None
