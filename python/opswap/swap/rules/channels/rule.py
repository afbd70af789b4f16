# SPDX-License-Identifier: MIT
"""Channel shuffles in any spelling, with the torch.cat before and the cut after if there are such."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.fx import Graph

from opswap import functional as F

from ...graph.aliasing import escape_or_write
from ...graph.calls import JOIN, REORDER, operation
from ...graph.layout import depends_on_layout, reads_memory_of
from ...rule import Refusal, Region, Replacement, Rule, Shapes, named
from .conditions import give_contiguous, within_proof
from .proof import Shuffle, prove_shuffle
from .regions import regions

__all__ = ["RULES"]


def _ends_in_join(region: Region) -> bool:
    return len(region.outputs) == 1 and operation(region.outputs[0]) in JOIN


def _find_rejoined(with_cat: bool, graph: Graph) -> Iterator[Region]:
    """Cuts that are joined again, of which a cut on its own would contain a part only."""
    return (r for r in regions(graph) if _ends_in_join(r) and (r.cat is not None) == with_cat)


def _find_split(graph: Graph) -> Iterator[Region]:
    return (r for r in regions(graph) if len(r.outputs) > 1)


def _find_cat(graph: Graph) -> Iterator[Region]:
    return (r for r in regions(graph) if len(r.outputs) == 1 and r.cat is not None)


def _find_plain(graph: Graph) -> Iterator[Region]:
    return (r for r in regions(graph) if len(r.outputs) == 1 and r.cat is None)


def _find_reordered(graph: Graph) -> Iterator[Region]:
    return (r for r in _find_plain(graph) if any(operation(n) in REORDER for n in r.nodes))


def _prove(region: Region, shapes: Shapes) -> Replacement:
    seen = [shapes[region.source]] if region.source in shapes else []
    shuffle = prove_shuffle(region, seen)
    if shuffle.groups == 1:
        raise Refusal("it does not move any channel", report=False)
    inputs = [f"x{i}" for i in range(len(region.inputs))]
    names = ", ".join(inputs) + ("," if len(inputs) == 1 else "")
    options = ", inverse=True" if shuffle.inverse else ""
    if shuffle.sections is not None:
        asked = reads_memory_of(region.outputs)
        if asked:
            raise Refusal(
                f"code calls {asked}() on a part of the result, which a new tensor would answer differently"
            )
        function = F.cat_channel_shuffle_split
        result = f"cat_channel_shuffle_split(({names}), {shuffle.groups}, {shuffle.sections}{options})"
    elif region.cat is not None:
        function = F.cat_channel_shuffle
        result = f"cat_channel_shuffle(({names}), {shuffle.groups}{options})"
    else:
        function = F.channel_shuffle
        result = f"channel_shuffle({inputs[0]}, {shuffle.groups}{options})"
    condition = _limits(inputs, shuffle)
    contiguous = f"give_contiguous(({names}))"
    if depends_on_layout(region.outputs):
        condition += f" and {contiguous}"
    objects = {function.__name__: function, "within_proof": within_proof, "give_contiguous": give_contiguous}
    return Replacement(condition, result, objects, contiguous)


def _limits(inputs: list[str], shuffle: Shuffle) -> str:
    names = ", ".join(inputs) + ("," if len(inputs) == 1 else "")
    limits = ""
    if shuffle.channels is not None:
        limits += f", channels={shuffle.channels}"
    if shuffle.spatial is not None:
        limits += f", spatial={shuffle.spatial}"
    if shuffle.batches is not None:
        limits += f", batches={shuffle.batches}"
    return f"within_proof(({names}), {shuffle.groups}, {shuffle.ndims}{limits})"


def _prove_identity(region: Region, shapes: Shapes) -> Replacement:
    """With one group a shuffle is the identity: the input itself is returned unless something later writes to it.

    If something does, the result is a view of a contiguous input, as torch's. Of another one `contiguous()` makes a
    copy, which keeps the format here.
    """
    seen = [shapes[region.source]] if region.source in shapes else []
    shuffle = prove_shuffle(region, seen)
    if shuffle.groups > 1:
        raise Refusal("it is a shuffle", report=False)
    condition = _limits(["x0"], shuffle)
    writer = escape_or_write(region.source, region.outputs)
    if not writer:
        return Replacement(condition, "x0", named(within_proof), "x0.is_contiguous()")
    if not shuffle.views:
        raise Refusal(f"it copies its input, and {writer} may write to the copy")
    contiguous, names = "x0.is_contiguous()", named(within_proof)
    if any(operation(n) == "contiguous" for n in region.nodes) and not depends_on_layout(region.outputs):
        result = f"x0.view_as(x0) if {contiguous} else x0.clone()"
        return Replacement(condition, result, names, contiguous)
    return Replacement(f"{condition} and {contiguous}", "x0.view_as(x0)", names)


def _shuffled(x: Tensor) -> Tensor:
    n, c, h, w = x.size()
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


class _Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _shuffled(x)


class _Cat(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return _shuffled(torch.cat((a, b), 1))


class _Split(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        first, second = _shuffled(torch.cat((a, b), 1)).chunk(2, 1)
        return first, second


_HALF = (16, 58, 28, 28)


RULES = (
    Rule("cat_channel_shuffle", True, partial(_find_rejoined, True), _prove),
    Rule("channel_shuffle", True, partial(_find_rejoined, False), _prove),
    Rule("cat_channel_shuffle_split", True, _find_split, _prove, example=lambda: (_Split(), (_HALF, _HALF))),
    Rule("cat_channel_shuffle", True, _find_cat, _prove, example=lambda: (_Cat(), (_HALF, _HALF))),
    Rule("channel_shuffle", True, _find_plain, _prove, example=lambda: (_Plain(), ((16, 116, 28, 28),))),
    Rule("identity", True, _find_reordered, _prove_identity),
)
