# SPDX-License-Identifier: MIT
"""A choice of how the calls of a merged module run."""

from __future__ import annotations

from dataclasses import dataclass, field

from .layers import RECORDED, Layer

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """How nodes run, by their names.

    loop: one branch after another. ways: pairs of a node and the mode of its layer. default: the mode of layers that
    are not named and have it. follow: operators after a loop that need no other form run in the loop too.
    """

    loop: frozenset[str] = frozenset()
    ways: frozenset[tuple[str, str]] = frozenset()
    follow: bool = False
    default: str = "wide"
    label: str = field(default="wide", compare=False)

    def mode(self, node: str, layer: Layer) -> str:
        """The mode of `Layer.wide` for a node."""
        way = dict(self.ways).get(node, self.default)
        return way if way in layer.ways or (way == RECORDED and layer.ways) else "wide"
