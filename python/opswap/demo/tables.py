# SPDX-License-Identifier: MIT
"""Tables of step times, no wider than 80 characters."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .._timing import Spread

__all__ = ["table", "time_cells"]


def table(title: str, *headings: str, time: str = "ms/step") -> Table:
    """A table of the given columns and those of `time_cells`."""
    made = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    made.add_column(headings[0], no_wrap=True)
    for heading in (*headings[1:], time, "quartiles", "speed"):
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def time_cells(spread: Spread, base: Spread) -> tuple[str, str, str]:
    """Median, quartiles, and how many times faster than the base."""
    quartiles = f"{_number(spread.low)}-{_number(spread.high)}"
    return _number(spread.median), quartiles, f"{base.median / spread.median:.2f}x"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100.0 else f"{value:.1f}"
