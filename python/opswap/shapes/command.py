# SPDX-License-Identifier: MIT
"""`python -m opswap shapes`: a user's script, or a model, under the detector."""

from __future__ import annotations

import argparse
import sys

from opswap.finding.script import (
    UsageError,
    add_arguments,
    factory_step,
    load_model,
    parse_target,
    run_under,
)

from .detector import detect

__all__ = ["add_command"]

_EXAMPLES = """\
examples:
  python3 -m opswap shapes -- train.py --epochs 1
  python3 -m opswap shapes --steps 3 --plot shapes.png -- -m package.train --batch-size 32
  python3 -m opswap shapes package.module:factory --input 32x3x224x224 --backward --strict

The report is printed at the end, also after an error or Ctrl-C, and the exit status is the script's own.
"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `shapes` to the command line."""
    parser = commands.add_parser(
        "shapes",
        help="name the lines of a script or a model whose shapes depend on data, and the rewrites that keep a size",
        description="Name the lines of a training script, or of a model, whose shapes depend on data, the inputs whose "
        "shapes change between steps, and the rewrites that keep a size.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        target = parse_target(arguments.target, arguments.input)
        if target.kind != "factory":
            if arguments.backward:
                raise UsageError("--backward is for a package.module:factory; a script runs its own")
            return run_under(detect(allow=arguments.allow), target, arguments)
        model = load_model(target.name)
        inputs = tuple(size.make() for size in arguments.input)
        run = factory_step(model, inputs, backward=arguments.backward, steps=arguments.steps or 1)
        context = detect(model, allow=arguments.allow)
        return run_under(context, run, argparse.Namespace(**{**vars(arguments), "steps": None}))
    except UsageError as error:
        print(f"opswap shapes: error: {error}", file=sys.stderr)
        return 2
