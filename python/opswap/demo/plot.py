# SPDX-License-Identifier: MIT
"""The picture of a run: loss curves, time of every step, step times by memory format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .training import Learner, Spread

__all__ = ["draw"]

_COLOURS = {"stock": "tab:gray", "swapped": "tab:red"}


def draw(
    path: Path, title: str, learners: Sequence[Learner], timings: Mapping[str, Mapping[str, Spread]]
) -> None:
    """Write a PNG, whatever the suffix of `path`.

    Args:
        learners: stock, then swapped, after training.
        timings: by workload, then by copy of the model, as `FormatTiming.spreads`.
    """
    figure = Figure(figsize=(11.0, 4.2 + 3.2 * bool(timings)), layout="constrained")
    figure.suptitle(title)
    panels = figure.subfigures(2, 1, height_ratios=(4.2, 3.2)) if timings else [figure]
    losses, times = panels[0].subplots(1, 2)
    _draw_losses(losses, learners)
    _draw_times(times, learners)
    if timings:
        for axes, (name, spreads) in zip(
            panels[1].subplots(1, len(timings), squeeze=False)[0], timings.items(), strict=True
        ):
            _draw_formats(axes, name, spreads)
    FigureCanvasAgg(figure).print_png(path)


def _draw_losses(axes: Axes, learners: Sequence[Learner]) -> None:
    for learner, width, style in zip(learners, (4.0, 1.2), ("-", "--"), strict=True):
        colour = _COLOURS[learner.name]
        axes.plot(learner.losses, style, linewidth=width, color=colour, label=learner.name)
    axes.set(xlabel="step", ylabel="loss", yscale="log", title="Loss: the curves lie on each other")
    axes.legend()


def _draw_times(axes: Axes, learners: Sequence[Learner]) -> None:
    for learner in learners:
        milliseconds = np.array(learner.seconds) * 1e3
        colour = _COLOURS[learner.name]
        axes.plot(milliseconds, ".", markersize=2.5, alpha=0.5, color=colour)
        median = float(np.median(milliseconds))
        axes.axhline(median, color=colour, label=f"{learner.name}, median {median:.1f} ms")
    ceiling = max(np.percentile(np.array(learner.seconds) * 1e3, 98) for learner in learners)
    axes.set(xlabel="step", ylabel="ms", ylim=(0, 1.2 * ceiling), title="Time of a training step")
    axes.legend()


def _draw_formats(axes: Axes, title: str, spreads: Mapping[str, Spread]) -> None:
    names = list(spreads)
    medians = np.array([s.median for s in spreads.values()])
    whiskers = np.array([(s.median - s.low, s.high - s.median) for s in spreads.values()]).T
    colours = [_COLOURS[name.partition(" ")[0]] for name in names]
    axes.barh(names, medians, xerr=whiskers, color=colours, ecolor="black", capsize=3)
    axes.invert_yaxis()
    axes.set(xlabel="ms a step, median and quartiles", title=title)
