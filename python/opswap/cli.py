# SPDX-License-Identifier: MIT
"""The command line: `python3 -m opswap COMMAND`; see commands/README.md."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from ._command_line import INTERRUPTED, UsageError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    from . import __version__
    from .commands import bench, demo, doctor, scan, tune, verify
    from .layout.command import COMMAND as LAYOUT
    from .memory.command import COMMAND as DENORMALS
    from .shapes.command import COMMAND as SHAPES

    parser = argparse.ArgumentParser(
        prog="opswap",
        description="Fast, verified replacements for slow operators in PyTorch models.",
        epilog="`python3 -m opswap COMMAND --help` has examples and exit statuses.",
    )
    parser.add_argument("--version", action="version", version=f"opswap {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (demo, scan, verify, tune, bench):
        command.add(commands)
    for finder in (LAYOUT, SHAPES, DENORMALS):
        finder.add_to(commands)
    doctor.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args: argv: the arguments; None for those of the process.
    Returns: the exit status that the command's `--help` describes: 0, 1, 2 for arguments that do not fit together, 130
        after Ctrl-C; 141 if the reader of the output has stopped, as shells report a program that SIGPIPE ended.
    Raises: SystemExit(2) for arguments that cannot be parsed.
    """
    try:
        try:
            arguments = _parser().parse_args(argv)
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # for what the interpreter flushes at its end
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 141


def _run(arguments: argparse.Namespace) -> int:
    try:
        return arguments.run(arguments)
    except UsageError as error:
        print(f"opswap {arguments.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
