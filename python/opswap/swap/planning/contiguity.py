# SPDX-License-Identifier: MIT
"""Which code of a model needs contiguous tensors, which a shuffle written with view and transpose always returns.

opswap's shuffle keeps channels_last, so a later `.view()` that worked on the stock model may fail. If a convolution is
between the two, its weights decide as well: in a model whose weights are in channels_last, that view fails anyway.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, Node

from opswap.ops._layout import suggest_memory_format

from ..graph.calls import operation, reached, subject
from ..graph.layout import (
    CONVOLUTION_CLASSES,
    draws,
    draws_in,
    is_flat,
    is_flat_call,
    is_view_or_copy,
    last_of,
    needs_layout,
)
from ..rule import Region, Replacement
from ..rules.conditions import CONVOLUTIONS

__all__ = [
    "Contiguity",
    "calls_convolution",
    "contiguity_of",
    "meant_for_channels_last",
    "order_matters",
    "order_matters_in",
    "restricted",
]


def meant_for_channels_last(module: nn.Module) -> bool:
    """True if the first convolution in the module has its weights in channels_last."""
    for m in module.modules():
        if isinstance(m, CONVOLUTIONS):
            return suggest_memory_format(m.weight) is not torch.contiguous_format
    return False


# torch's results are contiguous, opswap's are not.
_MADE_CONTIGUOUS = (nn.InstanceNorm2d, nn.InstanceNorm3d)
# torch's shuffles, which keep channels_last as opswap's do.
_KEEP_FORMAT = ("channel_shuffle", "native_channel_shuffle")


class Contiguity(enum.IntEnum):
    """Which outputs of replaced code have to be contiguous."""

    NONE = 0
    BEFORE_CONVOLUTIONS = 1
    ALWAYS = 2


def contiguity_of(
    graph: Graph, whole: bool, shuffles: Collection[Region] = (), unknown: Collection[nn.Module] = ()
) -> Contiguity:
    """What one captured forward needs.

    Args:
        whole: it is the model's own, whose arguments no shuffle made.
        shuffles: what is replaced by a call that keeps the memory format. Its rule has shown that code may get a new
            tensor in place of a view.
        unknown: modules whose forwards could not be captured, and may need contiguous tensors.
    """
    moved = {n for r in shuffles for n in r.nodes if is_view_or_copy(n)}
    made = {n for r in shuffles for n in r.outputs if operation(n) not in _KEEP_FORMAT}
    needs = (n for n in graph.nodes if n not in moved and needs_layout(n))
    asked = [_of_origin(o, whole, made) for n in needs for o in _origins(subject(n), made)]
    calls = (n for n in graph.nodes if n.op == "call_module" and n.meta["module"] in unknown)
    if any(o in made for n in calls for i in n.all_input_nodes for o in _origins(i, made)):
        asked.append(Contiguity.ALWAYS)
    return max(asked, default=Contiguity.NONE)


def _origins(node: Node, made: Collection[Node]) -> set[Node]:
    """The nodes that decide the layout of a tensor, walking back over those that keep the layout of their input.

    made: tensors that are contiguous in the stock model alone.
    """
    found: set[Node] = set()

    def before(n: Node) -> Iterable[Node]:
        module = n.meta["module"] if n.op == "call_module" else None
        if n in made or n.op == "placeholder" or n.target is F.instance_norm:
            found.add(n)
            return ()
        if module is not None and _of_module(module) is not Contiguity.NONE:
            found.add(n)
            return ()
        flat = is_flat_call(n) if module is None else is_flat(last_of(module))
        return () if flat else n.all_input_nodes

    reached([node], before)
    return found


def _of_origin(node: Node, whole: bool, made: Collection[Node]) -> Contiguity:
    if node.op == "call_module" and node not in made:
        return _of_module(node.meta["module"])
    return Contiguity.NONE if node.op == "placeholder" and whole else Contiguity.ALWAYS


# What gives its output one order in memory, for inputs in any, where the replacement of a rule has another one.
_ORDERED = (nn.AvgPool3d, nn.AdaptiveMaxPool3d)
_ORDERED_CALLS = (
    F.avg_pool3d,
    F.adaptive_max_pool3d,
    F.adaptive_max_pool3d_with_indices,
    torch.einsum,
)


def order_matters(graph: Graph, whole: bool) -> bool:
    """True if code of one captured forward depends on the order in memory of what one of these calls may give.

    Args: whole: it is the model's own, whose arguments no such call made.
    """
    asked = (subject(n) for n in graph.nodes if needs_layout(n) or draws(n))
    return any(_comes_from_ordered(node, whole) for node in asked if isinstance(node, Node))


def order_matters_in(sequential: nn.Sequential, whole: bool) -> bool:
    """The same for a Sequential that was not captured."""
    before: bool | None = not whole
    for module in sequential:
        if before and draws_in(module):
            return True
        here = _gives_ordered(module)
        before = before if here is None else here
    return False


def _gives_ordered(module: nn.Module) -> bool | None:
    """Whether the module's output may come from such a call; None if that is so if its input does."""
    if is_flat(last_of(module)):
        return False
    known = all(type(m).__module__.startswith("torch.nn.") for m in module.modules())
    return True if not known or any(isinstance(m, _ORDERED) for m in module.modules()) else None


def _comes_from_ordered(node: Node, whole: bool) -> bool:
    answers: set[bool | None] = set()

    def before(n: Node) -> Iterable[Node]:
        answer = _is_ordered(n, whole)
        answers.add(answer)
        return n.all_input_nodes if answer is None else ()

    reached([node], before)
    return True in answers


def _is_ordered(node: Node, whole: bool) -> bool | None:
    """Whether a tensor may come from such a call; None if that is so if its inputs do."""
    if node.op == "placeholder":
        return not whole
    if node.op == "call_module":
        return _gives_ordered(node.meta["module"])
    if node.target in _ORDERED_CALLS:
        return True
    return False if node.op == "get_attr" or is_flat_call(node) else None


def _of_module(module: nn.Module) -> Contiguity:
    last = last_of(module)
    if isinstance(last, _MADE_CONTIGUOUS):
        return Contiguity.ALWAYS
    if isinstance(last, CONVOLUTION_CLASSES):
        return Contiguity.BEFORE_CONVOLUTIONS
    if type(last).__module__.startswith("torch.nn."):
        several = last is not module and any(isinstance(m, CONVOLUTION_CLASSES) for m in module.modules())
        return Contiguity.BEFORE_CONVOLUTIONS if several and not is_flat(last) else Contiguity.NONE
    return Contiguity.ALWAYS


def restricted(
    region: Region, replacement: Replacement, contiguity: Contiguity
) -> tuple[Region, Replacement]:
    """The replacement, used only if its outputs are contiguous, and elsewhere its `otherwise`.

    For BEFORE_CONVOLUTIONS, also if the weights of the convolutions show that channels_last is intended.
    """
    condition = replacement.contiguous
    witness = _witness(region.anchor.graph) if contiguity is Contiguity.BEFORE_CONVOLUTIONS else None
    names = dict(replacement.names)
    if witness is not None:
        condition = f"({condition} or meant_for_channels_last(m{len(region.modules)}))"
        names["meant_for_channels_last"] = meant_for_channels_last
        region = replace(region, modules=(*region.modules, witness))
    condition, result = f"{replacement.condition} and {condition}", replacement.result
    if (otherwise := replacement.otherwise) is not None:
        result = f"({result} if {condition} else {otherwise.result})"
        condition = f"({condition} or {otherwise.condition})"
        names.update(otherwise.names)
    return region, replace(replacement, condition=condition, result=result, names=names)


def calls_convolution(graph: Graph) -> bool:
    """True if the graph calls a module with a convolution in it, of which the weights show the memory format."""
    return _witness(graph) is not None


def _witness(graph: Graph) -> Node | None:
    """A call of a module with a convolution in it."""
    for node in graph.nodes:
        if node.op == "call_module" and any(
            isinstance(m, CONVOLUTION_CLASSES) for m in node.meta["module"].modules()
        ):
            return node
    return None
