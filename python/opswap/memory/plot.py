# SPDX-License-Identifier: MIT
"""The picture of a report on denormals: what flushing gains in each module."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

from opswap.finding.plot import Bar, draw_bars

if TYPE_CHECKING:
    from .report import DenormalsSite

__all__ = ["draw"]

_COLOURS = {"weight": "#c0392b", "activation": "#f2a65a", "gradient": "#9b59b6", "state": "#7f8c8d"}


def draw(path: str | PathLike[str], sites: Sequence[DenormalsSite], title: str) -> None:
    """Write the picture of the findings."""
    measured = any(s.saved_seconds for s in sites)
    parts: dict[str, dict[str, float]] = {}
    marks: dict[str, str] = {}
    for site in sites:
        row = parts.setdefault(site.module or "(model)", {})
        row[site.status] = row.get(site.status, 0.0) + (
            site.saved_seconds * 1e3 if measured else site.denormals
        )
        if site.status == "weight":
            marks.setdefault(site.module or "(model)", f"{site.share:.1%} of {site.op}")
    bars = [Bar(module, row, marks.get(module, "")) for module, row in parts.items()]
    unit = "ms that flushing gains per module" if measured else "denormal numbers per module"
    draw_bars(path, bars, _COLOURS, title=title, unit=unit)
