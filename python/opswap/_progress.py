# SPDX-License-Identifier: MIT
"""Progress bars of rich, and nothing in their place if rich is not installed or the output is not a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["Update", "make_progress", "progress_bar"]

Update = Callable[[str, int, int], None]  # of what is done, the number of things done, and of all


def make_progress(console: Console, **options: Any) -> Progress:
    """Bars with a text, the number of things done, and the time. Raises: ModuleNotFoundError without rich."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, **options)


@contextlib.contextmanager
def progress_bar() -> Iterator[Update]:
    """Yields: a function of what is being done, the number of things done, and of all."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        yield lambda what, done, total: None
        return
    console = Console(stderr=True)
    with make_progress(console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        yield lambda what, done, total: progress.update(bar, description=what, completed=done, total=total)
