# SPDX-License-Identifier: MIT
"""The picture of a shapes report: how the sizes of each finding move from call to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

__all__ = ["draw"]

_WIDTH, _ROW = 9.0, 1.3


def draw(path: str | PathLike[str], series: Mapping[str, Sequence[int]], title: str) -> None:
    """Write a PNG with a panel for each line. Raises: ModuleNotFoundError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(_WIDTH, 1.2 + _ROW * max(len(series), 1)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    panels = figure.subplots(max(len(series), 1), squeeze=False)[:, 0]
    for panel, (name, sizes) in zip(panels, series.items(), strict=False):
        steps = range(1, len(sizes) + 1)
        panel.plot(
            steps,
            sizes,
            marker="o",
            markersize=3,
            linewidth=1,
            color="tab:red" if len(set(sizes)) > 1 else "tab:blue",
        )
        panel.set_title(name, loc="left", fontsize=9)
        panel.set_ylim(bottom=0)
        panel.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("call")
    FigureCanvasAgg(figure).print_png(path)
