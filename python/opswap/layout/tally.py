# SPDX-License-Identifier: MIT
"""Counts of one operator at one line, in one module and phase, with one status."""

from __future__ import annotations

from dataclasses import dataclass, field

from opswap.finding import Origin

__all__ = ["STATUSES", "Tally"]

STATUSES = ("kept", "lost", "restored", "needless", "ambiguous", "copied inside", "refused")
_MOST_SHAPES = 8


@dataclass(slots=True)
class Tally:
    """Sums over all calls. The `down_` fields: of operators that work on what this one turned contiguous."""

    status: str
    op: str
    origin: Origin
    hint: str = ""
    allowed: bool = False
    count: int = 0
    bytes: int = 0
    nanoseconds: int = 0
    down_count: int = 0
    down_bytes: int = 0
    down_nanoseconds: int = 0
    shapes: dict[tuple[int, ...], None] = field(default_factory=dict)

    def add(self, shape: tuple[int, ...], moved: int, nanoseconds: int) -> None:
        """One more call."""
        self.count += 1
        self.bytes += moved
        self.nanoseconds += nanoseconds
        if len(self.shapes) < _MOST_SHAPES:
            self.shapes[shape] = None

    def take_back(self, moved: int, nanoseconds: int) -> None:
        """One call fewer: it turned out to be of another status."""
        self.count -= 1
        self.bytes -= moved
        self.nanoseconds -= nanoseconds

    def add_downstream(self, moved: int, nanoseconds: int) -> None:
        """One more operator that runs on the contiguous data."""
        self.down_count += 1
        self.down_bytes += moved
        self.down_nanoseconds += nanoseconds
