# SPDX-License-Identifier: MIT
"""The picture of a run: loss curves, time of every step, step times by memory format."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator, NullFormatter

from .._timing import Spread
from .detection import Detection
from .task import Task
from .training import Learner

__all__ = ["draw"]

_COLOURS = {"stock": "tab:gray", "exact": "tab:red", "optimized": "tab:blue"}
_COLOURS |= {"loop": "tab:gray", "merged": "tab:red"}
_COLOURS |= {"bfloat16": "tab:green", "float16": "tab:orange"}
_FORM_COLOURS = {**_COLOURS, "exact": "tab:red", "swapped": "tab:blue"}
_LINES = {"stock": ("-", 4.0), "exact": ("--", 1.2), "optimized": ("-", 1.2)}
_LINES |= {"loop": _LINES["stock"], "merged": _LINES["exact"]}
_LINES |= dict.fromkeys(("bfloat16", "float16"), ("-", 0.8))
_TRAINING_HEIGHT, _TIMING_HEIGHT = 4.0, 3.6
_TITLE_WIDTH = 22  # letters, of the panels side by side


def draw(
    path: Path,
    machine: str,
    tasks: Sequence[Task],
    timings: Mapping[str, Mapping[str, Spread]],
    detections: Sequence[Detection] = (),
) -> None:
    """Write a PNG, whatever the suffix of `path`.

    Args:
        tasks: after their last stage; a row of panels each.
        timings: by workload, then by copy of the model, as `FormatTiming.spreads`; the last row.
        detections: the part about shapes, after its training; a row too.
    """
    heights = [_TRAINING_HEIGHT] * (len(tasks) + len(detections)) + [_TIMING_HEIGHT] * bool(timings)
    figure = Figure(figsize=(12.0, sum(heights) + 0.4), layout="constrained")
    figure.suptitle(f"opswap on {machine}", fontsize="medium")
    rows = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights, hspace=0.03)[:, 0]
    for row, task in zip(rows, tasks, strict=False):
        _draw_training(row, task)
    for row, detection in zip(rows[len(tasks) :], detections, strict=False):
        detection.draw(row)
    if timings:
        panels = rows[-1].subplots(1, len(timings), squeeze=False)[0]
        for axes, (title, spreads) in zip(panels, timings.items(), strict=True):
            _draw_formats(axes, title, spreads)
    FigureCanvasAgg(figure).print_png(path)


def _draw_training(row: SubFigure, task: Task) -> None:
    row.suptitle(f"{task.network} on {task.subject}", fontweight="bold")
    losses, times = row.subplots(1, 2)
    _draw_losses(losses, task.learners)
    _draw_times(times, task.learners)


def _steps(learner: Learner) -> np.ndarray:
    return np.arange(len(learner.losses)) + 1


def _draw_losses(axes: Axes, learners: Sequence[Learner]) -> None:
    for learner in learners:
        style, width = _LINES[learner.name]
        axes.plot(
            _steps(learner),
            learner.losses,
            style,
            linewidth=width,
            color=_COLOURS[learner.name],
            label=learner.name,
        )
    pair = " and ".join(learner.name for learner in learners[:2])
    axes.set(xlabel="step", ylabel="loss", yscale="log", title=f"Loss: {pair} coincide")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend()


def _draw_times(axes: Axes, learners: Sequence[Learner]) -> None:
    milliseconds = [np.array(learner.seconds) * 1e3 for learner in learners]
    for learner, times in zip(learners, milliseconds, strict=True):
        steps, median, colour = _steps(learner), float(np.median(times)), _COLOURS[learner.name]
        axes.plot(steps, times, ".", markersize=3.0, alpha=0.5, color=colour)
        axes.hlines(
            median, steps[0], steps[-1], color=colour, label=f"{learner.name}, median {median:.0f} ms"
        )
    ceiling = max(np.percentile(times, 98) for times in milliseconds)
    axes.set(xlabel="step", ylabel="ms", ylim=(0, 1.2 * ceiling), title="Time of a training step")
    axes.legend()


def _draw_formats(axes: Axes, title: str, spreads: Mapping[str, Spread]) -> None:
    names = [name.replace(" ", "\n") for name in spreads]
    medians = np.array([s.median for s in spreads.values()])
    whiskers = np.array([(s.median - s.low, s.high - s.median) for s in spreads.values()]).T
    axes.barh(
        names,
        medians,
        xerr=whiskers,
        color=[_FORM_COLOURS[name.partition(" ")[0]] for name in spreads],
        ecolor="black",
        capsize=3,
    )
    axes.invert_yaxis()
    axes.set_xlabel("ms, with quartiles", fontsize="small")
    axes.tick_params(labelsize="small")
    axes.set_title(textwrap.fill(title, _TITLE_WIDTH), fontsize="small")
