# SPDX-License-Identifier: MIT
"""What a run needs from a network and its data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from .formats import FormatTiming
from .training import Learner

__all__ = ["Outcome", "Stage", "Task"]


@dataclass(frozen=True)
class Stage:
    """A stretch of work: `done` yields how many of the `steps` are done."""

    title: str
    steps: int
    done: Iterator[int]


@dataclass(frozen=True)
class Outcome:
    """Percent of what was held out that is right, by learner; a note for the table."""

    accuracies: dict[str, float]
    notes: list[str]


class Task(ABC):
    """Stock and swapped copies of one network with equal weights, or a loop and its merged form, and what both learn.

    Attributes:
        network: name of the network; subject: what it learns from.
        steps: training steps.
        min_accuracy: percent; what is less is a failure of the demo.
        learners: stock, or the loop, first.
        report: of the swap or the merge; it is printed.
    """

    network: str
    subject: str
    steps: int
    min_accuracy: float
    learners: list[Learner]
    report: object

    @abstractmethod
    def stages(self) -> Iterator[Stage]:
        """The training, stage by stage; a stage ends before the next one is started.

        Raises: DemoError if the two differ.
        """

    @abstractmethod
    def outcome(self) -> Outcome:
        """After the last stage. Raises: DemoError if the two differ."""

    @abstractmethod
    def format_timings(self) -> list[FormatTiming]:
        """What to time in both memory formats."""
