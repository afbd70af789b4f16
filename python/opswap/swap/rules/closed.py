# SPDX-License-Identifier: MIT
"""Regions whose intermediate results nothing else may read, replaced where their last node is."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from ..graph.calls import write_between
from ..rule import Region

__all__ = ["closed_region"]


def closed_region(inputs: tuple[Node, ...], nodes: Iterable[Node], main: Node) -> Region:
    """The region of these nodes, of which the last one is the output. All inputs, parameters too, are known there."""
    ordered = tuple(sorted(set(nodes)))
    *inner, last = ordered
    leaks = any(not n.users.keys() <= set(ordered) for n in inner)
    problem = "an intermediate result is used elsewhere" if leaks else write_between(ordered[0], ordered)
    return Region(inputs=inputs, nodes=ordered, outputs=(last,), anchor=last, main=main, problem=problem)
