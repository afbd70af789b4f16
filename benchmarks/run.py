# SPDX-License-Identifier: MIT
"""Run the benchmarks: python benchmarks/run.py [channels] [models] [--threads 1 2] [--json FILE] ...

Every row compares opswap with the fastest of the stock forms, timed in turn in one process: first all
forms, which finds the fastest, then that one and opswap alone. The mode of the allocator belongs to a
process, so each mode runs in a process of its own:
  warm   freed blocks are reused, no page faults: what a kernel can do
  fresh  the allocator's defaults, which give large blocks back to the system: what a plain script gets
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from case import measure
from cases import FAMILIES

_ALLOCATION = {
    "warm": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
        "MALLOC_TOP_PAD_": str(1 << 28),
    },
    "fresh": {},
}
_CHILD = "OPSWAP_BENCHMARK_ALLOCATION"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", nargs="*", help=f"{', '.join(FAMILIES)}; all of them by default")
    default_threads = sorted({1, torch.get_num_threads()})
    parser.add_argument("--threads", type=int, nargs="+", default=default_threads, metavar="N")
    parser.add_argument("--allocation", nargs="+", choices=_ALLOCATION, default=list(_ALLOCATION))
    parser.add_argument(
        "--filter", nargs="+", default=[], metavar="TEXT", help="rows whose label has every TEXT"
    )
    parser.add_argument("--batch", type=int, default=32, help="images (default 32)")
    parser.add_argument("--seconds", type=float, default=1.0, help="timing of a row (default 1)")
    parser.add_argument("--list", action="store_true", help="print the labels and stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all rows to this file")
    return parser


def _parse() -> argparse.Namespace:
    parser = _parser()
    arguments = parser.parse_args()
    unknown = [name for name in arguments.family if name not in FAMILIES]
    if unknown:
        parser.error(f"no family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    for name in ("batch", "seconds"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name} must be positive, got {getattr(arguments, name)}")
    if min(arguments.threads) < 1:
        parser.error(f"--threads must be at least 1, got {min(arguments.threads)}")
    if arguments.json and not arguments.json.parent.is_dir():
        parser.error(f"the folder of --json {str(arguments.json)!r} does not exist")
    return arguments


def _selected(arguments: argparse.Namespace) -> list[Any]:
    found = [case for name in arguments.family or FAMILIES for case in FAMILIES[name](arguments.batch)]
    return [case for case in found if all(text in case.label for text in arguments.filter)]


def _measure_all(arguments: argparse.Namespace, allocation: str) -> None:
    """The child's work: one line of JSON a row."""
    for case in _selected(arguments):
        for threads in arguments.threads:
            for row in measure(case, threads, allocation, arguments.seconds):
                print(json.dumps(row), flush=True)


def _rows_of_child(allocation: str) -> Iterator[dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    environment |= _ALLOCATION[allocation] | {_CHILD: allocation}
    command = [sys.executable, __file__, *sys.argv[1:]]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            yield json.loads(line)
    if child.returncode:
        raise SystemExit(f"the {allocation} run failed with status {child.returncode}")


def _is_slower(row: dict[str, Any]) -> bool:
    return not row["costs"] and row["ratio"] < 1.0


def _print_row(row: dict[str, Any]) -> None:
    label = f"{row['case']:<18} {row['shape']:<14} {row['dtype']:<9} {row['layout']} {row['direction']:<9}"
    setting = f"{row['threads']} thr {row['allocation']:<5}"
    quartiles = f"[{row['opswap']['low']:.3f}-{row['opswap']['high']:.3f}]"
    times = f"{row['best_stock']:>10} {row['stock_ms']:8.3f} {row['form']} {row['opswap_ms']:8.3f} ms {quartiles:<17}"
    others = "".join(
        f", {name} {spread['median']:.3f}"
        for name, spread in row["stock"].items()
        if name != row["best_stock"]
    )
    roof = f" {row['gbps']:5.1f} GB/s {row['roof_share']:4.0%} of copy" if row["gbps"] else ""
    shares = "".join(f" {kind} {share:.0%}" for kind, share in row["shares"].items() if share >= 0.01)
    others += f"; shares:{shares}" if shares else ""
    others += "".join(f"; {name} does not run: {reason[:70]}" for name, reason in row["refused"].items())
    others += f"; runs as {row['plan']}" if row["plan"] else ""
    mark = "  SLOWER" if _is_slower(row) else ""
    print(f"{label} {setting} {times} {row['ratio']:5.2f}x{roof}{others}{mark}", flush=True)


def main() -> None:
    arguments = _parse()
    selected = _selected(arguments)
    if not selected:
        raise SystemExit(f"no row matches --filter {' '.join(arguments.filter)}")
    if arguments.list:
        print("\n".join(case.label for case in selected))
        return
    if _CHILD in os.environ:
        _measure_all(arguments, os.environ[_CHILD])
        return
    rows = []
    for allocation in arguments.allocation:
        for row in _rows_of_child(allocation):
            _print_row(row)
            rows.append(row)
    slower = sum(map(_is_slower, rows))
    print(f"{len(rows)} rows, {slower} slower than stock")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
