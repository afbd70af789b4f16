# SPDX-License-Identifier: MIT
"""Rows of a run: as text, as JSON and CSV, and what moved between two runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opswap._table import milliseconds, times_faster

__all__ = ["HEAD", "RIGHT", "Change", "Row", "cells", "changes", "is_slower", "key", "read", "to_csv"]

Row = dict[str, Any]

_IDENTITY = ("case", "shape", "dtype", "layout", "direction", "threads", "allocation", "form")
HEAD = (*_IDENTITY[:-1], "best stock", "ms", "opswap", "ms", "faster", "quartiles", "of copy", "")
RIGHT = (5, 8, 10, 11, 12, 13)
# A smaller difference is noise, even if the quartiles are far apart.
_LEAST_CHANGE = 0.05


def key(row: Row) -> tuple[Any, ...]:
    """Names the row: case, shape, dtype, layout, direction, threads, allocation, form of opswap."""
    return tuple(row.get(name, "") for name in _IDENTITY)


def _comparable(row: Row) -> tuple[Any, ...]:
    """What two comparable rows have in common; a ratio is to the fastest of the same stock forms."""
    return *key(row), *sorted(row["stock"])


def is_slower(row: Row) -> bool:
    """opswap is slower than the fastest stock form, though it does nothing more."""
    return not row.get("costs") and bool(row["ratio"] < 1.0)


def cells(row: Row) -> tuple[str, ...]:
    """The texts of a row under HEAD."""
    low, high = _quartiles(row)
    notes = [f"{name} does not run: {reason[:70]}" for name, reason in row.get("refused", {}).items()]
    notes += [f"runs as {row['plan']}"] if row.get("plan") else []
    notes += ["SLOWER"] if is_slower(row) else []
    return (
        *(str(row[name]) for name in _IDENTITY[:-1]),
        row["best_stock"],
        milliseconds(row["stock_ms"]),
        row.get("form", ""),
        milliseconds(row["opswap_ms"]),
        times_faster(row["ratio"]),
        f"{low:.2f}-{high:.2f}",
        f"{row['roof_share']:.0%}" if row["roof_share"] else "",
        "; ".join(notes),
    )


def read(file: Path) -> list[Row]:
    """The rows that a run wrote as JSON. Raises: OSError; ValueError if the file has other content."""
    rows = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(rows, list) or not all(
        isinstance(r, dict) and {"case", "ratio"} <= r.keys() for r in rows
    ):
        raise ValueError("expected a list of rows, as `python3 -m opswap bench --json FILE` writes it")
    return rows


def to_csv(rows: Sequence[Row]) -> str:
    """One line per row: what identifies it, times in milliseconds with quartiles, ratios, share of a copy."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    names = [*_IDENTITY, "best_stock", "stock_ms", "stock_low", "stock_high", "opswap_ms", "opswap_low"]
    names += ["opswap_high", "ratio", "ratio_low", "ratio_high", "roof_share", "gbps", "copy_gbps"]
    names += ["cpu", "isa", "torch", "opswap_version", "date"]
    writer.writerow(names)
    for row in rows:
        best = row["stock"][row["best_stock"]]
        low, high = _quartiles(row)
        flat = {**row, "stock_low": best["low"], "stock_high": best["high"]}
        flat |= {"opswap_low": row["opswap"]["low"], "opswap_high": row["opswap"]["high"]}
        flat |= {"ratio_low": low, "ratio_high": high}
        writer.writerow(["" if flat.get(name) is None else flat[name] for name in names])
    return output.getvalue()


@dataclass(frozen=True)
class Change:
    """A row whose ratio to stock differs between two runs by more than the noise."""

    old: Row
    new: Row

    @property
    def factor(self) -> float:
        """Above 1 if opswap has become faster."""
        return self.new["ratio"] / self.old["ratio"]


def changes(old: Iterable[Row], new: Iterable[Row]) -> tuple[list[Change], int]:
    """Rows that moved, the largest loss first, and the number of rows that both runs have.

    Ratios to stock are compared, which depend less than times on the speed of the machine. A row moved if the quartiles
    of its two ratios do not overlap and the ratios differ by more than 5 %.
    """
    before = {_comparable(row): row for row in old}
    pairs = [Change(before[_comparable(row)], row) for row in new if _comparable(row) in before]
    return sorted(filter(_moved, pairs), key=lambda change: change.factor), len(pairs)


def _moved(change: Change) -> bool:
    (old_low, old_high), (new_low, new_high) = _quartiles(change.old), _quartiles(change.new)
    apart = new_low > old_high or new_high < old_low
    return apart and max(change.factor, 1 / change.factor) > 1 + _LEAST_CHANGE


def _quartiles(row: Row) -> tuple[float, float]:
    """Of the ratio; of a row without them, of the ratio with opswap's quartiles."""
    if "ratio_low" in row:
        return row["ratio_low"], row["ratio_high"]
    ours = row["opswap"]
    return row["ratio"] * ours["median"] / ours["high"], row["ratio"] * ours["median"] / ours["low"]
