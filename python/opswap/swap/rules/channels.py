# SPDX-License-Identifier: MIT
"""Channel shuffles in any spelling, with the torch.cat before and the cut after where there are such."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Graph

from opswap import functional as F

from ..match import Region, regions
from ..prove import prove_shuffle
from ..runtime import covers
from .rule import Replacement, Rule, Shapes

__all__ = ["RULES"]


def _find_split(graph: Graph) -> Iterator[Region]:
    return (r for r in regions(graph) if len(r.outputs) > 1)


def _find_cat(graph: Graph) -> Iterator[Region]:
    return (r for r in regions(graph) if len(r.outputs) == 1 and r.cat is not None)


def _find_plain(graph: Graph) -> Iterator[Region]:
    return (r for r in regions(graph) if len(r.outputs) == 1 and r.cat is None)


def _prove(region: Region, shapes: Shapes) -> Replacement:
    seen = [shapes[region.source]] if region.source in shapes else []
    shuffle = prove_shuffle(region, seen)
    inputs = [f"x{i}" for i in range(len(region.inputs))]
    names = ", ".join(inputs) + ("," if len(inputs) == 1 else "")
    options = ", inverse=True" if shuffle.inverse else ""
    if shuffle.sections is not None:
        function = F.cat_channel_shuffle_split
        result = f"cat_channel_shuffle_split(({names}), {shuffle.groups}, {shuffle.sections}{options})"
    elif region.cat is not None:
        function = F.cat_channel_shuffle
        result = f"cat_channel_shuffle(({names}), {shuffle.groups}{options})"
    else:
        function = F.channel_shuffle
        result = f"channel_shuffle({inputs[0]}, {shuffle.groups}{options})"
    limits = ""
    if shuffle.channels is not None:
        limits += f", channels={shuffle.channels}"
    if shuffle.spatial is not None:
        limits += f", spatial={shuffle.spatial}"
    condition = f"covers(({names}), {shuffle.groups}, {shuffle.ndims}{limits})"
    return Replacement(condition, result, {function.__name__: function, "covers": covers})


RULES = (
    Rule("cat_channel_shuffle_split", True, _find_split, _prove),
    Rule("cat_channel_shuffle", True, _find_cat, _prove),
    Rule("channel_shuffle", True, _find_plain, _prove),
)
