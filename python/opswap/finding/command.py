# SPDX-License-Identifier: MIT
"""The command line of a finder: a script, a module or a factory's model, run under it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from opswap._command_line import Commands, UsageError, add_command

from .script import (
    Target,
    add_arguments,
    factory_step,
    load_model,
    parse_target,
    process_state,
    require_matplotlib,
    run_under,
)

__all__ = ["Command", "Step"]

Step = Callable[[], None]


def _as_they_are(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return inputs


@dataclass(frozen=True)
class Command:
    """One finder as a command.

    name, help, description, examples: of `add_command`. make: the context, from a model or None, an
    allow-list, and a function that runs one step of a factory's model (None for a script). prepare: makes a factory's
    model and inputs ready, and returns the inputs.
    """

    name: str
    help: str
    description: str
    examples: str
    make: Callable[[nn.Module | None, Sequence[str], Step | None], Any]
    prepare: Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]] = _as_they_are

    def add_to(self, commands: Commands[argparse.ArgumentParser]) -> None:
        """Add the command to a command line."""
        statuses = {
            0: "the script's own status: it succeeded",
            1: "the script failed, or, with --strict, something was found",
        }
        parser = add_command(
            commands,
            self.name,
            help=self.help,
            description=self.description,
            examples=self.examples,
            statuses=statuses,
            run=self.run,
        )
        add_arguments(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        """Run what the arguments name. Returns: the exit status. Raises: UsageError."""
        with process_state():
            return self._run_target(arguments)

    def _run_target(self, arguments: argparse.Namespace) -> int:
        target = parse_target(arguments.target, arguments.input)
        if arguments.plot is not None:
            require_matplotlib()
        if target.kind == "factory":
            return self._run_factory(target, arguments)
        if arguments.backward:
            raise UsageError("--backward is for a package.module:factory; a script runs its own")
        return run_under(self.make(None, arguments.allow, None), target, arguments)

    def _run_factory(self, target: Target, arguments: argparse.Namespace) -> int:
        model = load_model(target.name)
        inputs = self.prepare(model, tuple(size.make() for size in arguments.input))
        step = factory_step(model, inputs, backward=arguments.backward)

        def run() -> None:
            for _ in range(arguments.steps or 1):
                step()

        context = self.make(model, arguments.allow, step)
        return run_under(context, run, argparse.Namespace(**{**vars(arguments), "steps": None}))
