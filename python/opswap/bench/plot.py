# SPDX-License-Identifier: MIT
"""Rows of a run as a picture: ratios to stock, bandwidth against a copy, where the time of a step goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .rows import Row

__all__ = ["draw"]

_BAR_HEIGHT, _MARGIN = 0.22, 1.2
_WIDTH = 11.0
_MOST_BARS = 200  # of a panel; a PNG has at most 2^16 pixels a side
_FASTER, _SLOWER, _STOCK = "tab:blue", "tab:red", "tab:gray"


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Write a PNG, whatever the suffix of `path`.

    Args: rows: at least one; of more than 200, those with the smallest ratios.
    Raises: ModuleNotFoundError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    machine, found = rows[-1], len(rows)
    if found > _MOST_BARS:
        rows = sorted(rows, key=lambda row: row["ratio"])[:_MOST_BARS]
    roofs = [row for row in rows if row.get("gbps")]
    profiled = [row for row in rows if row.get("shares")]
    panels: list[tuple[Callable[[Any, Sequence[Row]], None], Sequence[Row], int]] = [(_ratios, rows, 1)]
    panels += [(_roofs, roofs, 1)] if roofs else []
    panels += [(_shares, profiled, 2)] if profiled else []
    heights = [_MARGIN + _BAR_HEIGHT * bars * len(chosen) for _, chosen, bars in panels]
    figure = Figure(figsize=(_WIDTH, sum(heights) + 0.4), layout="constrained")
    figure.suptitle(
        f"opswap {machine['opswap_version']} on {machine['cpu']}, {machine['isa']}, torch {machine['torch']}, "
        f"{machine['date']}" + (f"; the {len(rows)} smallest ratios of {found}" if found > len(rows) else ""),
        fontsize="medium",
    )
    places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (panel, chosen, _) in zip(places, panels, strict=True):
        panel(axes, chosen)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(figure).print_png(path)


def _label(row: Row) -> str:
    form = row.get("form", "").removeprefix("opswap")
    layout = "" if row["layout"] in form else row["layout"]
    words = (row["case"], row["shape"], row["dtype"], form, layout, row["direction"])
    return " ".join(filter(None, (*words, f"{row['threads']} thr {row['allocation']}")))


def _ticks(axes: Any, places: Sequence[float], rows: Sequence[Row]) -> None:
    axes.set_yticks(list(places), [_label(row) for row in rows], fontsize=7)
    axes.set_ylim(-0.7, max(places) + 0.9)


def _ratios(axes: Any, rows: Sequence[Row]) -> None:
    """A bar per row from 1, on a logarithmic axis."""
    places = range(len(rows))
    ratios = [row["ratio"] for row in rows]
    colours = [_SLOWER if ratio < 1.0 else _FASTER for ratio in ratios]
    axes.barh(places, [r - 1.0 for r in ratios], left=1.0, color=colours, height=0.75)
    for place, ratio in zip(places, ratios, strict=True):
        side = "right" if ratio < 1.0 else "left"
        axes.text(ratio, place, f" {ratio:.2f} ", va="center", ha=side, fontsize=7)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.9 * min([1.0, *ratios]) / 1.2, max([1.0, *ratios]) * 1.3)
    axes.xaxis.set_major_formatter("{x:g}")
    _ticks(axes, places, rows)
    axes.set_title("Times faster than the fastest stock form", loc="left", fontsize=11)


def _roofs(axes: Any, rows: Sequence[Row]) -> None:
    """GB/s of opswap, and, as a mark, of a copy of as many bytes, which is the roof."""
    places = range(len(rows))
    axes.barh(places, [row["gbps"] for row in rows], color=_FASTER, height=0.75, label="opswap")
    axes.plot(
        [row["copy_gbps"] for row in rows], places, "|", color="black", markersize=9, label="torch's copy_"
    )
    _ticks(axes, places, rows)
    axes.set_xlabel("GB/s, read and written")
    axes.set_title("Bandwidth, and its roof: a copy of as many bytes", loc="left", fontsize=11)
    axes.legend(fontsize=8)


def _shares(axes: Any, rows: Sequence[Row]) -> None:
    """Two bars per row: milliseconds of the stock step and of the swapped one, by kinds of operators."""
    from matplotlib import colormaps

    kinds = list(dict.fromkeys(kind for row in rows for kind in row["shares"]))
    pairs = [(place, row) for place, row in enumerate(rows)]
    for index, kind in enumerate(kinds):
        for offset, shares, ms in ((0.0, "stock_shares", "stock_ms"), (0.4, "shares", "opswap_ms")):
            widths, left = [], []
            for _, row in pairs:
                parts = row.get(shares) or {}
                widths.append(row[ms] * parts.get(kind, 0.0))
                left.append(row[ms] * sum(parts.get(k, 0.0) for k in kinds[:index]))
            axes.barh(
                [place + offset for place, _ in pairs],
                widths,
                left=left,
                height=0.36,
                color=colormaps["tab10"](index % 10),
                label=kind if offset == 0.0 else None,
            )
    _ticks(axes, [place + 0.2 for place, _ in pairs], rows)
    axes.set_xlabel("ms")
    axes.set_title("Where the time of a step goes: stock above, swapped below", loc="left", fontsize=11)
    axes.legend(fontsize=8)
