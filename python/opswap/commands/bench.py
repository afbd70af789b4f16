# SPDX-License-Identifier: MIT
"""`python3 -m opswap bench`: operators and whole networks against what a user would call instead."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from opswap._command_line import (
    INTERRUPTED,
    STANDARD_OUTPUT,
    Commands,
    UsageError,
    add_command,
    add_json,
    at_least_one,
    positive_number,
    require,
    writable_file,
    write_json,
)
from opswap._table import table

__all__ = ["add"]

_FAMILIES = (
    "channels, pool, norm, norm_pool, group_norm, layer_norm, dropout, linear, pointwise, depthwise, conv, chain, "
    "batch, rules, merge, models, half, finders, compiled, peers"
)
_EXAMPLES = """
bench channels --threads 1 2 --json channels.json --plot channels.png
bench lprnet --allocation warm
bench --compare channels.json
bench --from new.json --compare old.json

A row compares opswap with the fastest of the stock forms, timed in turn in one process. Allocation "warm" reuses freed
memory: what a kernel can do. "fresh" has the allocator's defaults: what a plain script gets. "cold" is "warm" with
other data in the caches before each call: what an operator finds between the others of a network.
"""

Row = dict[str, Any]


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to a command line."""
    parser = add_command(
        commands,
        "bench",
        help="time operators and networks against their stock forms",
        description="Check that opswap and each stock form agree, and time them in turn. Ctrl-C ends the run; what was "
        "measured until then is printed and written.",
        examples=_EXAMPLES,
        statuses={
            0: "measured",
            1: "results differ, or, with --compare, a row has become slower by more than the noise",
        },
        run=_run,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="family|model",
        help=f"{_FAMILIES}; or the beginning of a case's name, such as LPRNet or max_pool2d. All by default, or with "
        "--compare, the rows of OLD.json",
    )
    parser.add_argument("--threads", type=at_least_one, nargs="+", metavar="N", help="1 and all by default")
    parser.add_argument(
        "--allocation", nargs="+", choices=("warm", "fresh", "cold"), help="warm and fresh by default"
    )
    parser.add_argument(
        "--filter", nargs="+", default=[], metavar="TEXT", help="rows whose label has every TEXT"
    )
    parser.add_argument("--batch", type=at_least_one, default=32, help="images")
    parser.add_argument("--seconds", type=positive_number, default=1.0, help="timing of a row")
    parser.add_argument("--list", action="store_true", help="print the labels and stop")
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="FILE", help="rows of --json, not a new run"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="OLD.json",
        help="print what moved since that run by more than the noise",
    )
    add_json(parser, "all rows")
    parser.add_argument("--csv", type=writable_file, metavar="FILE", help="write all rows as CSV")
    parser.add_argument("--plot", type=writable_file, metavar="FILE", help="draw all rows, a PNG file")


def _run(arguments: argparse.Namespace) -> int:
    from opswap.bench.rows import changes, is_slower, to_csv
    from opswap.bench.run import BenchError

    if arguments.plot is not None:
        require("matplotlib", "--plot", "bench")
    old = None if arguments.compare is None else _read(arguments.compare)
    rows: list[Row] = []
    status = 0
    try:
        if arguments.source is not None:
            rows += _read(arguments.source)
            _print_all(arguments, rows)
        else:
            selection = _selection(arguments, old)
            if arguments.list:
                print("\n".join(case.label for case in selection.cases()))
                return 0
            _measure(arguments, selection, rows)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = INTERRUPTED
    except BenchError as error:
        print(f"opswap bench: {error}", file=sys.stderr)
        status = 1
    if arguments.json is not None:
        write_json(arguments.json, json.dumps(rows, indent=1))
    if arguments.csv is not None:
        arguments.csv.write_text(to_csv(rows), encoding="utf-8")
    if arguments.plot is not None and rows:
        from opswap.bench.plot import draw

        draw(arguments.plot, rows)
    out = _text_output(arguments)
    print(f"{len(rows)} rows, {sum(map(is_slower, rows))} slower than stock", file=out)
    if old is None:
        return status
    moved, common = changes(old, rows)
    print("\n".join(_compared(moved, common)), file=out)
    return status or int(any(change.factor < 1.0 for change in moved))


def _text_output(arguments: argparse.Namespace) -> Any:
    return sys.stderr if arguments.json == STANDARD_OUTPUT else sys.stdout


def _read(file: Path) -> list[Row]:
    from opswap.bench.rows import read

    try:
        return read(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(file)!r} cannot be read: {error}") from None


def _selection(arguments: argparse.Namespace, old: Sequence[Row] | None) -> Any:
    """What to measure: with --compare and no names, what the old run measured, in its settings."""
    from opswap.bench.selection import ALLOCATIONS, Selection, unknown_name

    names = tuple(arguments.names)
    unknown = unknown_name(names, arguments.batch)
    if unknown is not None:
        raise UsageError(f"neither a family nor a case: {unknown!r}; the families are {_FAMILIES}")
    known = old or []
    threads = arguments.threads or sorted({row["threads"] for row in known} or {1, torch.get_num_threads()})
    measured = {row["allocation"] for row in known} or Selection.allocations
    allocations = arguments.allocation or [name for name in ALLOCATIONS if name in measured]
    columns = ("case", "shape", "dtype", "layout", "direction")
    wanted = [] if names else [tuple(row[column] for column in columns) for row in known]
    selection = Selection(
        names=names,
        filters=tuple(arguments.filter),
        batch=arguments.batch,
        threads=tuple(threads),
        seconds=arguments.seconds,
        allocations=tuple(allocations),
        rows=tuple(dict.fromkeys(wanted)),
    )
    if not selection.cases():
        raise UsageError("no row matches; `python3 -m opswap bench --list` prints all labels")
    return selection


def _measure(arguments: argparse.Namespace, selection: Any, rows: list[Row]) -> None:
    """Measure and show row by row; `rows` has them also after an interrupt."""
    from opswap.bench.display import line_by_line, live_table
    from opswap.bench.run import measured_rows

    out = _text_output(arguments)
    live = out.isatty() and importlib.util.find_spec("rich") is not None
    display = live_table if live else line_by_line
    try:
        with display(out, selection) as show, contextlib.closing(measured_rows(selection)) as measured:
            for row in measured:
                rows.append(row)
                show(row)
    finally:
        if live:
            _print_all(arguments, rows)


def _print_all(arguments: argparse.Namespace, rows: Sequence[Row]) -> None:
    from opswap.bench.rows import HEAD, RIGHT, cells

    print("\n".join(table(HEAD, map(cells, rows), right=RIGHT)), file=_text_output(arguments))


def _compared(moved: Sequence[Any], common: int) -> list[str]:
    from opswap.bench.rows import key

    head = ("row", "ratio before", "ratio now", "change")
    lines = [
        (" ".join(map(str, key(change.new))), *(f"{row['ratio']:.2f}" for row in (change.old, change.new)))
        for change in moved
    ]
    percents = [f"{change.factor - 1:+.0%}" for change in moved]
    rows = [(*line, percent) for line, percent in zip(lines, percents, strict=True)]
    found = f"{len(moved)} of {common} rows that both runs have moved by more than the noise"
    return [found, *table(head, rows, right=(1, 2, 3))]
