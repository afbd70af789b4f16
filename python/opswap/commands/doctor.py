# SPDX-License-Identifier: MIT
"""`python3 -m opswap doctor`: what this machine runs, what its allocator costs, and whether the kernels are right."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from opswap._command_line import Commands, add_command, add_json, write_json

__all__ = ["add"]


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to a command line."""
    parser = add_command(
        commands,
        "doctor",
        help="print versions, processor and page faults, and check every kernel tier",
        description="Print versions, processor, instruction sets and threads. Count the page faults of a training "
        "step, which show what the allocator costs, and say what would help. Run kernels of every family on every "
        "instruction set, and compare them with torch's code.",
        examples="doctor\ndoctor --json -",
        statuses={0: "every kernel agrees with torch", 1: "a kernel does not"},
        run=_run,
    )
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from opswap.doctor import check_kernels, describe
    from opswap.memory.page_faults import allocator_cost

    machine, cost, faults = describe(), allocator_cost(), check_kernels()
    if arguments.json is not None:
        pages = {**asdict(cost), "advice": cost.advice}
        found = {"machine": machine, "page_faults": pages, "faults": faults}
        write_json(arguments.json, json.dumps(found, indent=2))
        return 1 if faults else 0
    for key, value in {**machine, "page faults": str(cost)}.items():
        print(f"{key:<11} {value}")
    print(f"{'kernels':<11} " + ("every tier agrees with the reference" if not faults else "FAULTY"))
    for fault in faults:
        print(f"  {fault}")
    return 1 if faults else 0
