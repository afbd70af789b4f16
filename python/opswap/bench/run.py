# SPDX-License-Identifier: MIT
"""Measure a selection: one process per mode of the allocator, which prints a line of JSON per row.

    python3 -m opswap.bench.run SELECTION ALLOCATION

is such a process; SELECTION is `Selection` as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from opswap.memory import reuse_freed

from .case import measure
from .rows import Row
from .selection import ALLOCATIONS, Selection

__all__ = ["BenchError", "Row", "measured_rows"]


class BenchError(RuntimeError):
    """A process failed; it has printed why."""


def measured_rows(selection: Selection) -> Generator[Row, None, None]:
    """The rows of a selection, one after another. Closing the iterator ends the process that measures.

    Raises: BenchError if results of opswap and stock differ, or if opswap ran as plain torch code.
    """
    for allocation in selection.allocations:
        yield from _rows_of_process(selection, allocation)


def _rows_of_process(selection: Selection, allocation: str) -> Generator[Row, None, None]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    environment |= ALLOCATIONS[allocation]
    command = [sys.executable, "-m", "opswap.bench.run", json.dumps(asdict(selection)), allocation]
    # In a session of its own, so that Ctrl-C on the terminal reaches this process alone, which then ends the other.
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            for line in child.stdout or ():
                yield json.loads(line)
        except BaseException:
            child.kill()
            raise
    if child.returncode:
        raise BenchError(f"the {allocation} run failed with status {child.returncode}")


def _main(selection: str, allocation: str) -> None:
    given = {key: _tuple(value) for key, value in json.loads(selection).items()}
    chosen = replace(Selection(), **given)
    if allocation != "fresh":
        with suppress(RuntimeError):  # not glibc: what ALLOCATIONS sets has no effect either
            reuse_freed(True)
    for case in chosen.cases():
        for threads in chosen.threads:
            for row in measure(case, threads, allocation, chosen.seconds):
                print(json.dumps(row), flush=True)


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


if __name__ == "__main__":
    _main(*sys.argv[1:])
