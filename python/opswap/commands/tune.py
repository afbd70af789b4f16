# SPDX-License-Identifier: MIT
"""`python3 -m opswap tune`: measure rules and merged convolutions on this machine, and keep the result."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from opswap._command_line import (
    STANDARD_OUTPUT,
    Commands,
    add_command,
    add_json,
    add_threads,
    at_least_one,
    write_json,
)
from opswap._progress import progress_bar
from opswap._table import table

__all__ = ["add"]

_EXAMPLES = """
tune
tune --only swap --rounds 25
tune --threads 2 --json tuned.json

opswap.swap then leaves alone what is slower than torch on this machine, and opswap.merge picks the fastest way for
convolutions that it does not measure itself. Without this command both use figures of other machines with the same
instruction set.
"""


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to a command line."""
    parser = add_command(
        commands,
        "tune",
        help="measure what is faster on this machine, and keep the result for swap and merge",
        description="Time the training step of every replacement against torch, in both memory formats, and every "
        "way to run merged convolutions at many sizes. The results are kept in the user's cache folder.",
        examples=_EXAMPLES,
        statuses={0: "the results are kept", 1: "the cache folder cannot be written"},
        run=_run,
    )
    parser.add_argument("--only", choices=("swap", "merge"), help="one of the two in place of both")
    parser.add_argument("--rounds", type=at_least_one, default=9, help="of swap: timed steps of each form")
    add_threads(parser)
    add_json(parser, "the measured gains")


def _run(arguments: argparse.Namespace) -> int:

    import torch

    from opswap.merge.costs import own_file
    from opswap.merge.tune import tune as tune_merge
    from opswap.swap.planning.gains import cache_file
    from opswap.swap.tuning import tune

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    found: dict[str, Any] = {}
    files = []
    try:
        if arguments.only != "merge":
            with progress_bar() as progress:
                found["swap"] = tune(rounds=arguments.rounds, progress=progress)
            files.append(cache_file())
        if arguments.only != "swap":
            with progress_bar() as progress:
                found["merge"] = tune_merge(progress=progress)
            files.append(own_file())
    except OSError as error:
        print(f"opswap tune: {error}", file=sys.stderr)
        return 1
    if arguments.json is not None:
        write_json(arguments.json, json.dumps(found, indent=2))
    if arguments.json != STANDARD_OUTPUT:
        print("\n".join(_tables(found)))
        print("\n".join(f"kept in {file}" for file in files))
    return 0


def _tables(found: dict[str, Any]) -> list[str]:
    from opswap.merge.costs import WAYS

    lines: list[str] = []
    if "swap" in found:
        formats = ("contiguous", "channels_last")
        rows = [(rule, *(_gain(gains.get(k)) for k in formats)) for rule, gains in found["swap"].items()]
        lines += [
            "times faster than torch, a training step",
            *table(("rule", *formats), rows, right=(1, 2)),
            "",
        ]
    if "merge" in found:
        head = ("merged convolutions", "sizes", "grouped", *WAYS)
        rows = [(name, *_fastest(rows)) for name, rows in found["merge"].items()]
        lines += [
            "at how many sizes each way is the fastest",
            *table(head, rows, right=range(1, len(head))),
            "",
        ]
    return lines


def _gain(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _fastest(rows: list[list[float]]) -> list[str]:
    from opswap.merge.costs import WAYS

    counts = [0] * (1 + len(WAYS))
    for row in rows:
        gains = [1.0, *row[-len(WAYS) :]]
        counts[gains.index(max(gains))] += 1
    return [str(len(rows)), *map(str, counts)]
