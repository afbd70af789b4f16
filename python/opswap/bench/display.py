# SPDX-License-Identifier: MIT
"""Rows shown while they are measured: line by line, or as a live table with a progress bar on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import IO

from opswap._progress import make_progress
from opswap._table import line

from .rows import HEAD, RIGHT, Row, cells, is_slower
from .selection import Selection

__all__ = ["line_by_line", "live_table"]

Show = Callable[[Row], None]

_NUMBER_WIDTH, _NAME_WIDTH = 7, 12
_LINES_AROUND = 6  # of the terminal, that the rows of the table leave for head, bar and frame


@contextlib.contextmanager
def line_by_line(out: IO[str], selection: Selection) -> Iterator[Show]:
    """Yields: a function that prints a row at once, under a head, in columns as wide as the cases need."""
    columns = zip(*((c.case, c.shape, c.dtype, "NCHW", c.direction) for c in selection.cases()), strict=True)
    least = [max(map(len, column)) for column in columns]
    least += [_NUMBER_WIDTH if i in RIGHT else _NAME_WIDTH for i in range(len(least), len(HEAD))]
    widths = [max(width, len(heading)) for width, heading in zip(least, HEAD, strict=True)]

    def print_line(texts: tuple[str, ...]) -> None:
        print(line(texts, widths, RIGHT), file=out, flush=True)

    print_line(HEAD)
    yield lambda row: print_line(cells(row))


@contextlib.contextmanager
def live_table(out: IO[str], selection: Selection) -> Iterator[Show]:
    """Yields: a function that adds a row to a table of the latest rows, which ends with the context."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console, Group
    from rich.live import Live
    from rich.table import Table

    console = Console(file=out)
    progress = make_progress(console)
    bar = progress.add_task("measured", total=selection.count())
    shown: list[Row] = []

    def group() -> Group:
        made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for index, heading in enumerate(HEAD):
            made.add_column(heading, justify="right" if index in RIGHT else "left", no_wrap=True)
        for row in shown[-max(console.height - _LINES_AROUND, 1) :]:
            made.add_row(*cells(row), style="red" if is_slower(row) else "")
        return Group(made, progress)

    with Live(group(), console=console, transient=True) as live:

        def show(row: Row) -> None:
            shown.append(row)
            progress.advance(bar)
            live.update(group())

        yield show
