# SPDX-License-Identifier: MIT
"""A run of the demo from the first batch to the plot, and what it prints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import opswap

from .._command_line import STANDARD_OUTPUT, write_json
from .._progress import make_progress
from .._timing import Spread
from ..doctor import machine as describe_machine
from .detection import Detection
from .lprnet import LPRNetTask
from .multi_branch import MultiBranchTask
from .plot import draw
from .settings import DemoError, Settings
from .shufflenet import ShuffleNetTask
from .tables import table, time_cells
from .task import Outcome, Task

__all__ = ["run"]

_TASKS: dict[str, type[Task]] = {
    "shufflenet": ShuffleNetTask,
    "lprnet": LPRNetTask,
    "multi_branch": MultiBranchTask,
}


def run(settings: Settings) -> None:
    """Train, compare, time and print one network after another, and plot them together.

    Raises: DemoError if losses or parameters differ, or if an accuracy is below the required one.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    console = Console(stderr=settings.json == STANDARD_OUTPUT)
    machine = describe_machine()
    console.print(f"opswap {opswap.__version__} on {machine}", highlight=False)
    if settings.only == "ddp":
        from .ddp import launch  # not above: torchrun runs that file as its main module

        title = "ShuffleNetV2 x0.5 on handwritten digits, DistributedDataParallel"
        console.print(f"\n{title}", style="bold", highlight=False)
        console.print(launch(settings), highlight=False, markup=False, soft_wrap=True, end="")
        return
    tasks = [make(settings) for name, make in _TASKS.items() if settings.only in (None, name)]
    outcomes, timings = [], {}
    for task in tasks:
        console.print(f"\n{task.network} on {task.subject}", style="bold", highlight=False)
        shown = str(task.report) if settings.verbose else _summary(task.report)
        console.print(shown, markup=False, highlight=False, soft_wrap=True)
        with make_progress(console) as progress:
            outcome = _train(progress, task)
            spreads = _time_formats(progress, task) if settings.rounds else {}
        _print_results(console, task, outcome, spreads)
        outcomes.append(outcome)
        timings |= spreads
    detection = [_detect(console, settings)] if settings.only in (None, "detection") else []
    console.print()
    if settings.only not in ("multi_branch", "detection"):
        console.print(
            "exact: only rules with bit-equal results; swapped: all rules, equal up to rounding; "
            "optimized: what opswap.optimize makes of the model. Freed memory is reused for all copies."
        )
    draw(settings.output, machine, tasks, timings, detection)
    console.print(f"Plot: {settings.output}", soft_wrap=True)
    if settings.json is not None:
        write_json(
            settings.json, json.dumps(_as_data(machine, tasks, outcomes, timings, detection), indent=2)
        )
    for task, outcome in zip(tasks, outcomes, strict=True):
        _check_accuracy(task, outcome)


def _as_data(
    machine: str,
    tasks: Sequence[Task],
    outcomes: Sequence[Outcome],
    timings: Mapping[str, Mapping[str, Spread]],
    detections: Sequence[Detection],
) -> dict[str, Any]:
    """What `--json` writes. Times are milliseconds."""
    networks = {
        task.network: {
            "losses": {learner.name: learner.losses for learner in task.learners},
            "step_ms": {learner.name: asdict(learner.spread(skip=1)) for learner in task.learners},
            "accuracies": outcome.accuracies,
            "notes": outcome.notes,
        }
        for task, outcome in zip(tasks, outcomes, strict=True)
    }
    formats = {
        title: {name: asdict(spread) for name, spread in spreads.items()}
        for title, spreads in timings.items()
    }
    forms = {
        form.name: {"losses": form.losses, "graphs": form.graphs} for d in detections for form in d.forms
    }
    return {"machine": machine, "networks": networks, "formats_ms": formats, "detection": forms}


def _summary(report: object) -> str:
    """The number of replacements by rule, and what optimize did; of a merge the first line."""
    if not isinstance(report, opswap.Report):
        return f"{str(report).splitlines()[0]} (--verbose prints the table)"
    rules = Counter(site.rule for site in report.swapped)
    by_rule = ", ".join(f"{count} x {rule}" for rule, count in rules.most_common())
    lines = [f"{len(report.swapped)} swapped: {by_rule} (--verbose prints the table)"]
    return "\n".join([*lines, *(f"{p.name}: {p.detail}" for p in report.parts if p.name != "swap")])


def _detect(console: Console, settings: Settings) -> Detection:
    """The part about shapes: find, count, train, time, print."""
    console.print(f"\n{Detection.title}", style="bold", highlight=False)
    part = Detection(settings)
    part.find()
    part.count_graphs()
    with make_progress(console) as progress:
        _follow(progress, "training, both forms", part.train(), settings.detection_steps)
        if settings.rounds:
            _follow(progress, "timing, and compiling", part.time(), settings.rounds)
    part.print(console)
    return part


def _follow(progress: Progress, title: str, done: Iterable[int], total: int) -> None:
    bar = progress.add_task(title, total=total)
    count = 0
    for count in done:
        progress.update(bar, completed=count)
    progress.update(bar, total=count)


def _train(progress: Progress, task: Task) -> Outcome:
    for stage in task.stages():
        _follow(progress, stage.title, stage.done, stage.steps)
    return task.outcome()


def _time_formats(progress: Progress, task: Task) -> dict[str, dict[str, Spread]]:
    spreads = {}
    for timing in task.format_timings():
        _follow(progress, f"timing {timing.title}", timing.run(), timing.steps)
        spreads[timing.title] = timing.spreads()
    return spreads


def _print_results(
    console: Console, task: Task, outcome: Outcome, timings: dict[str, dict[str, Spread]]
) -> None:
    console.print()
    console.print(_training_table(task, outcome))
    for note in outcome.notes:
        console.print(note, highlight=False)
    for title, spreads in timings.items():
        console.print()
        console.print(_timing_table(title, spreads))


def _training_table(task: Task, outcome: Outcome) -> Table:
    names = ", ".join(learner.name for learner in task.learners)
    made = table(f"{task.network}: {names} in turn", "copy", "steps", "loss", "held out")
    base = task.learners[0].spread(skip=1)
    for learner in task.learners:
        accuracy = outcome.accuracies.get(learner.name)
        made.add_row(
            learner.name,
            f"1-{len(learner.losses)}",
            f"{learner.losses[0]:.2f} to {learner.losses[-1]:.2f}",
            "" if accuracy is None else f"{accuracy:.1f} %",
            *time_cells(learner.spread(skip=1), base),
        )
    return made


def _timing_table(title: str, spreads: dict[str, Spread]) -> Table:
    made = table(f"{title}, in turn", "copy", time="ms")
    for name, spread in spreads.items():
        made.add_row(name, *time_cells(spread, next(iter(spreads.values()))))
    return made


def _check_accuracy(task: Task, outcome: Outcome) -> None:
    for name, percent in outcome.accuracies.items():
        if percent < task.min_accuracy:
            raise DemoError(
                f"{task.network}, {name}: held-out accuracy {percent:.2f} % on {task.subject}, "
                f"expected at least {task.min_accuracy:g} %"
            )
