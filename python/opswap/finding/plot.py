# SPDX-License-Identifier: MIT
"""One picture for every finder: a bar for each module, in parts of different colours, with marks beside the worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

__all__ = ["MOST_BARS", "Bar", "draw_bars"]

MOST_BARS = 30
_BAR_HEIGHT = 0.28
_WIDTH = 11.0
_MARK_COLOUR = "tab:red"


@dataclass(frozen=True)
class Bar:
    """One row. parts: a value for each name of a part. mark: text beside it, "" for none."""

    label: str
    parts: Mapping[str, float] = field(default_factory=dict)
    mark: str = ""

    def total(self) -> float:
        return sum(self.parts.values())


def draw_bars(
    path: str | PathLike[str], bars: Sequence[Bar], colours: Mapping[str, str], *, title: str, unit: str
) -> None:
    """Write a PNG, whatever the suffix of `path`.

    Args: bars: in the order to draw them; beyond 30, the smallest without a mark are joined into one.
        colours: by part, in the order of drawing. unit: what the axis counts; values are in that unit.
    Raises: ModuleNotFoundError without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = _folded(bars)
    figure = Figure(figsize=(_WIDTH, 1.7 + _BAR_HEIGHT * max(len(shown), 3)), layout="constrained")
    axes = figure.subplots()
    places = range(len(shown))
    left = [0.0] * len(shown)
    for part, colour in colours.items():
        values = [bar.parts.get(part, 0.0) for bar in shown]
        if any(values):
            axes.barh(places, values, left=left, color=colour, label=part, height=0.75)
            left = [a + b for a, b in zip(left, values, strict=True)]
    widest = max(left, default=0.0) or 1.0
    for place, bar in zip(places, shown, strict=True):
        if bar.mark:
            axes.text(
                left[place] + 0.01 * widest, place, bar.mark, color=_MARK_COLOUR, va="center", fontsize=8
            )
    axes.set_yticks(list(places), [bar.label for bar in shown], fontsize=8)
    for tick, bar in zip(axes.get_yticklabels(), shown, strict=True):
        if bar.mark:
            tick.set_color(_MARK_COLOUR)
            tick.set_fontweight("bold")
    axes.set_ylim(-0.7, max(len(shown), 3) - 0.3)
    axes.set_xlim(0, widest * (1.45 if any(bar.mark for bar in shown) else 1.05))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(unit)
    axes.set_title(title, loc="left", fontsize=11)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=8)
    FigureCanvasAgg(figure).print_png(path)


def _folded(bars: Sequence[Bar]) -> list[Bar]:
    if len(bars) <= MOST_BARS:
        return list(bars)
    ranked = sorted(range(len(bars)), key=lambda i: (not bars[i].mark, -bars[i].total()))
    kept = set(ranked[: MOST_BARS - 1])
    rest = [bars[i] for i in range(len(bars)) if i not in kept]
    parts: dict[str, float] = {}
    for bar in rest:
        for part, value in bar.parts.items():
            parts[part] = parts.get(part, 0.0) + value
    return [bars[i] for i in sorted(kept)] + [Bar(f"({len(rest)} smaller ones)", parts)]
