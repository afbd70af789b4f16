# SPDX-License-Identifier: MIT
"""What all commands share: their `--help`, types of arguments, mistakes of users, JSON and the text of a machine."""

from __future__ import annotations

import argparse
import importlib
import os
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "INTERRUPTED",
    "STANDARD_OUTPUT",
    "Commands",
    "UsageError",
    "add_command",
    "add_json",
    "add_model",
    "add_threads",
    "at_least_one",
    "factory",
    "json_file",
    "natural",
    "positive_number",
    "require",
    "writable_file",
    "write_json",
]

INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C ended
STANDARD_OUTPUT = Path("-")
_WIDTH = 100

Commands = argparse._SubParsersAction


class UsageError(Exception):
    """The user's arguments do not fit together or name something that does not exist: exit status 2."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows a default if there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, argparse.SUPPRESS) or isinstance(action.default, list):
            return action.help
        return f"{action.help} (default: %(default)s)"


def add_command(
    commands: Commands[argparse.ArgumentParser],
    name: str,
    *,
    help: str,
    description: str,
    examples: str,
    statuses: Mapping[int, str],
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add a command, whose `--help` ends with examples and exit statuses.

    Args:
        examples: one command per line, as typed after "python3 -m opswap "; after an empty line, notes.
        statuses: what exit statuses mean; 2 and 130 mean the same everywhere.
        run: gets the arguments and returns the exit status; it may raise UsageError.
    """
    statuses = {**statuses, 2: "wrong arguments", INTERRUPTED: "stopped by Ctrl-C"}
    typed, _, notes = examples.strip().partition("\n\n")
    lines = ["examples:", *(f"  python3 -m opswap {line}" for line in typed.splitlines())]
    lines += ["", notes] if notes else []
    lines += ["", "exit status:", *(f"  {status:<4} {statuses[status]}" for status in sorted(statuses))]
    parser = commands.add_parser(
        name,
        help=help,
        description=textwrap.fill(description, _WIDTH),
        epilog="\n".join(lines),
        formatter_class=_HelpFormatter,
    )
    parser.set_defaults(run=run, command=name)
    return parser


def add_json(parser: argparse.ArgumentParser, what: str = "the report") -> None:
    """The argument `--json`."""
    parser.add_argument(
        "--json",
        type=json_file,
        metavar="FILE",
        help=f"write {what} as JSON; - is standard output, in place of the text",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """The argument `model`."""
    parser.add_argument(
        "model",
        type=factory,
        metavar="package.module:factory",
        help="a model, or what returns one when called",
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The argument `--threads`."""
    parser.add_argument(
        "--threads", type=at_least_one, help="threads of torch in place of torch's own choice"
    )


def write_json(file: Path, text: str) -> None:
    """Write JSON to the file of `--json`."""
    if file == STANDARD_OUTPUT:
        print(text)
    else:
        file.write_text(text + "\n", encoding="utf-8")


def require(module: str, use: str, extra: str) -> Any:
    """The module, which comes with one of opswap's extras. Raises: UsageError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        name = missing.name or module
        if name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise UsageError(
            f"{use} needs {name}, which is not installed: pip install 'opswap[{extra}]'"
        ) from None


def natural(text: str) -> int:
    """An int of at least 0. Raises: ArgumentTypeError."""
    if not (text.isdecimal() and text.isascii()):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def at_least_one(text: str) -> int:
    """A positive int. Raises: ArgumentTypeError."""
    if not (text.isdecimal() and text.isascii() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def positive_number(text: str) -> float:
    """A finite float above 0. Raises: ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return value


def factory(text: str) -> str:
    """ "package.module:factory". Raises: ArgumentTypeError."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise argparse.ArgumentTypeError(f"expected package.module:factory, got {text!r}")
    return text


def writable_file(text: str) -> Path:
    """The path of a file that can be written. Raises: ArgumentTypeError."""
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file name, got {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder of {text!r} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return path


def json_file(text: str) -> Path:
    """STANDARD_OUTPUT, or the absolute path of a file that can be written. Raises: ArgumentTypeError."""
    return STANDARD_OUTPUT if text == "-" else writable_file(text).absolute()
