# SPDX-License-Identifier: MIT
"""Tables as text: for a terminal, and for a README."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

__all__ = ["line", "markdown", "milliseconds", "short_name", "table", "times_faster"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """A head and rows of equal length as lines; each column is as wide as its longest entry. Nothing without rows.

    Args: right: the columns of numbers, which end at the right.
    """
    cells = [tuple(head), *map(tuple, rows)]
    if len(cells) == 1:
        return []
    right = set(right)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [line(row, widths, right) for row in cells]


def line(texts: Sequence[str], widths: Sequence[int], right: Collection[int] = ()) -> str:
    """One line of a table whose columns have these widths."""
    places = enumerate(zip(texts, widths, strict=True))
    return "  ".join(t.rjust(w) if i in right else t.ljust(w) for i, (t, w) in places).rstrip()


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The same as a table of Markdown."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def short_name(value: object) -> str:
    """The name of a dtype or a memory format, such as "float32"."""
    return str(value).removeprefix("torch.")


def milliseconds(time: float) -> str:
    """Three digits."""
    return f"{time:.0f}" if time >= 100 else f"{time:.3g}"


def times_faster(ratio: float) -> str:
    """Such as "1.52x"."""
    return f"{ratio:.2f}x"
