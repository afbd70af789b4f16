# SPDX-License-Identifier: MIT
"""The picture of a layout report: bytes per module, losses marked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

from opswap.finding.plot import MOST_BARS, Bar, draw_bars

if TYPE_CHECKING:
    from .report import LayoutSite

__all__ = ["draw"]

_KEPT, _AFTER, _COPIES = (
    "channels_last kept",
    "contiguous after a loss",
    "lost here, or copied back and forth",
)
_COLOURS = {_KEPT: "#9bbbd4", _AFTER: "#f2a65a", _COPIES: "#c0392b"}
_UNITS = ("B", "kB", "MB", "GB", "TB")
_MARKED = ("refused", "lost", "copied inside", "needless")


def draw(
    path: str | PathLike[str],
    sites: Sequence[LayoutSite],
    wrong_bytes: Mapping[str, int],
    order: Sequence[str],
    title: str,
) -> None:
    """Write the picture. `order` has every module, by its first call.

    Rows are the modules, or their parents at the depth at which 30 rows are enough.
    """
    parts: dict[str, dict[str, float]] = {}
    marks: dict[str, dict[str, None]] = {}
    row_of = _rows(order)
    for site in sites:
        part = _KEPT if site.status in ("kept", "ambiguous") else _COPIES
        name = row_of[site.module]
        row = parts.setdefault(name, {})
        row[part] = row.get(part, 0.0) + site.bytes
        if site.status in _MARKED and not site.allowed:
            mark = f"{site.status}: {site.source.rpartition('/')[2]}"
            marks.setdefault(name, {})[mark] = None
    for module, moved in wrong_bytes.items():
        row = parts.setdefault(row_of[module], {})
        row[_AFTER] = row.get(_AFTER, 0.0) + moved
    largest = max((sum(row.values()) for row in parts.values()), default=1.0)
    power = min(int(math.log(max(largest, 1.0), 1000)), len(_UNITS) - 1)
    bars = [
        Bar(
            module or "(model)",
            {part: value / 1000**power for part, value in parts[module].items()},
            _shorten(list(marks.get(module, ()))),
        )
        for module in dict.fromkeys(row_of.values())
        if module in parts
    ]
    draw_bars(path, bars, _COLOURS, title=title, unit=f"{_UNITS[power]} read and written per module")


def _shorten(marks: list[str]) -> str:
    return ", ".join(marks[:2]) + (f" and {len(marks) - 2} more" if len(marks) > 2 else "")


def _rows(modules: Sequence[str]) -> dict[str, str]:
    """The row of each module: itself, or the parent at the greatest depth that leaves 30 rows."""
    deepest = max((m.count(".") + 1 for m in modules), default=1)
    for depth in range(deepest, 0, -1):
        rows = {m: ".".join(m.split(".")[:depth]) for m in modules}
        if len(set(rows.values())) <= MOST_BARS:
            break
    return rows if modules else {}
