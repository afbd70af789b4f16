# SPDX-License-Identifier: MIT
"""`python3 -m opswap scan`: what swap would replace in a model."""

from __future__ import annotations

import argparse

from opswap._command_line import Commands, UsageError, add_command, add_json, add_model, write_json
from opswap.finding.script import add_input

__all__ = ["add"]

_EXAMPLES = """
scan package.module:factory
scan torchvision.models:shufflenet_v2_x1_0 --input 8x3x224x224 --exact
"""


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to a command line."""
    parser = add_command(
        commands,
        "scan",
        help="list what swap would replace in a model",
        description="List what swap would replace in a model, how much faster each replacement was measured, and "
        "why other candidates are kept.",
        examples=_EXAMPLES,
        statuses={
            0: "swap replaces something",
            1: "swap finds nothing, or, with --strict, a module could not be analysed",
        },
        run=_run,
    )
    add_model(parser)
    parser.add_argument("--exact", action="store_true", help="only replacements with bit-equal results")
    add_input(parser, "run a copy once on an input of this size")
    add_json(parser)
    parser.add_argument(
        "--strict", action="store_true", help="exit status 1 also if a module could not be analysed"
    )


def _run(arguments: argparse.Namespace) -> int:
    from opswap.finding.script import load_model
    from opswap.swap import scan

    model = load_model(arguments.model)
    inputs = None if arguments.input is None else tuple(size.make() for size in arguments.input)
    try:
        found = scan(model, exact=arguments.exact, example_inputs=inputs)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if arguments.json is not None:
        write_json(arguments.json, found.to_json())
    else:
        print(found)
    unknown = arguments.strict and any(not site.rule for site in found.kept)
    return 0 if found.swapped and not unknown else 1
