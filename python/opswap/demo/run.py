# SPDX-License-Identifier: MIT
"""A run of the demo from the first batch to the plot, and what it prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import opswap

from .. import isa
from ..doctor import cpu_model
from .plot import draw
from .settings import DemoError, Settings
from .shufflenet import ShuffleNetTask
from .training import Spread

__all__ = ["run"]


def run(settings: Settings) -> None:
    """Train, compare, time, print and plot.

    Raises: DemoError where losses or parameters differ, or where the accuracy is below settings.min_accuracy.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    console = Console()
    machine = f"{cpu_model()}, {isa.current()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    console.print(f"opswap {opswap.__version__} on {machine}", highlight=False)
    task = ShuffleNetTask(settings)
    console.print(str(task.report), markup=False, highlight=False, soft_wrap=True)
    with _progress(console) as progress:
        _follow(progress, "training stock and swapped", task.train(), task.steps)
        accuracies = {learner.name: task.accuracy(learner) for learner in (task.stock, task.swapped)}
        timings = _time_formats(progress, task) if settings.rounds else {}
    compared = task.compared_tensors()
    console.print(_training_table(task, accuracies))
    console.print(f"Equal bit for bit: all {task.steps} losses, all {compared} parameters and buffers.")
    for title, spreads in timings.items():
        console.print(_timing_table(title, spreads))
    console.print("Only what lies between the convolutions is replaced: their own time stays in every row.")
    learners = (task.stock, task.swapped)
    draw(settings.output, f"ShuffleNetV2 on handwritten digits; {machine}", learners, timings)
    console.print(f"Plot: {settings.output}", soft_wrap=True)
    _check_accuracy(accuracies, settings.min_accuracy)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _follow(progress: Progress, title: str, done: Iterable[int], total: int) -> None:
    bar = progress.add_task(title, total=total)
    count = 0
    for count in done:
        progress.update(bar, completed=count)
    progress.update(bar, total=count)


def _time_formats(progress: Progress, task: ShuffleNetTask) -> dict[str, dict[str, Spread]]:
    spreads = {}
    for timing in task.format_timings():
        _follow(progress, f"timing {timing.title}", timing.run(), timing.steps)
        spreads[timing.title] = timing.spreads()
    return spreads


def _milliseconds(spread: Spread) -> tuple[str, str]:
    return f"{spread.median:.1f}", f"{spread.low:.1f} - {spread.high:.1f}"


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _training_table(task: ShuffleNetTask, accuracies: Mapping[str, float]) -> Table:
    title = f"Training ShuffleNetV2 x0.5, {task.steps} steps each, in turn on the same batches"
    table = _table(title, "copy", "loss", "held out", "ms a step", "quartiles", "speed")
    base = task.stock.spread(skip=1).median
    for learner in (task.stock, task.swapped):
        spread = learner.spread(skip=1)
        losses = f"{learner.losses[0]:.4f} to {learner.losses[-1]:.4f}"
        accuracy = f"{accuracies[learner.name]:.1f} %"
        table.add_row(learner.name, losses, accuracy, *_milliseconds(spread), f"{base / spread.median:.2f}x")
    return table


def _timing_table(title: str, spreads: Mapping[str, Spread]) -> Table:
    table = _table(f"Training step, ShuffleNetV2 {title}, in turn", "copy", "ms a step", "quartiles", "speed")
    base = spreads["stock contiguous"].median
    for name, spread in spreads.items():
        table.add_row(name, *_milliseconds(spread), f"{base / spread.median:.2f}x")
    return table


def _check_accuracy(accuracies: Mapping[str, float], least: float) -> None:
    for name, percent in accuracies.items():
        if percent < least:
            raise DemoError(
                f"the {name} model's held-out accuracy is {percent:.2f} %, expected at least {least:g} %"
            )
