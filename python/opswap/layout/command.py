# SPDX-License-Identifier: MIT
"""`python -m opswap layout`: a user's script, or a model, under the checker."""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

from opswap.finding.script import (
    Target,
    UsageError,
    add_arguments,
    factory_step,
    load_model,
    parse_target,
    process_state,
    require_matplotlib,
    run_under,
)

from .checker import check

__all__ = ["add_command"]

_EXAMPLES = """\
examples:
  python3 -m opswap layout -- train.py --epochs 1
  python3 -m opswap layout --steps 3 --plot layout.png -- -m package.train --batch-size 32
  python3 -m opswap layout package.module:factory --input 32x3x224x224 --backward --strict

A script runs as it is; a factory's model and inputs are converted to channels_last first. The report is printed at the
end, also after an error or Ctrl-C, and the exit status is the script's own.
"""
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `layout` to the command line."""
    parser = commands.add_parser(
        "layout",
        help="name the lines of a script or a model that lose channels_last, and what that costs",
        description="Name the lines of a training script, or of a model, that lose the channels_last memory format, "
        "what that costs, and what to change.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        with process_state():
            return _run_target(arguments)
    except UsageError as error:
        print(f"opswap layout: error: {error}", file=sys.stderr)
        return 2


def _run_target(arguments: argparse.Namespace) -> int:
    target = parse_target(arguments.target, arguments.input)
    if arguments.plot is not None:
        require_matplotlib()
    if target.kind == "factory":
        return _check_factory(target, arguments)
    if arguments.backward:
        raise UsageError("--backward is for a package.module:factory; a script runs its own")
    return run_under(check(allow=arguments.allow), target, arguments)


def _check_factory(target: Target, arguments: argparse.Namespace) -> int:
    model = load_model(target.name)
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() in _LAST:
            tensor.data = tensor.data.contiguous(memory_format=_LAST[tensor.dim()])
    inputs = tuple(_in_channels_last(size.make()) for size in arguments.input)
    run = factory_step(model, inputs, backward=arguments.backward, steps=arguments.steps or 1)
    context = check(model, allow=arguments.allow)
    return run_under(context, run, argparse.Namespace(**{**vars(arguments), "steps": None}))


def _in_channels_last(tensor: Tensor) -> Tensor:
    if tensor.dim() not in _LAST:
        return tensor
    return tensor.contiguous(memory_format=_LAST[tensor.dim()])
