# SPDX-License-Identifier: MIT
"""`python3 -m opswap doctor`: what this machine runs, what its allocator costs, whether opswap and torch are right."""

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
        help="print versions, processor and page faults, and check every kernel tier and torch",
        description="Print versions, processor, instruction sets and threads. Count the page faults of a training "
        "step, which show what the allocator costs, and say what would help. Run kernels of every family on every "
        "instruction set, and compare them with torch's code. Try known defects of torch itself, each in a process "
        "of its own, and say how to keep away from those that are found.",
        examples="doctor\ndoctor --json -",
        statuses={0: "every kernel agrees with torch", 1: "a kernel does not"},
        run=_run,
    )
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from opswap.doctor import check_kernels, describe
    from opswap.memory.page_faults import allocator_cost
    from opswap.torch_defects import try_all

    machine, cost, faults, tried = describe(), allocator_cost(), check_kernels(), try_all()
    if arguments.json is not None:
        pages = {**asdict(cost), "advice": cost.advice}
        defects = [asdict(outcome) for outcome in tried]
        found = {"machine": machine, "page_faults": pages, "faults": faults, "torch_defects": defects}
        write_json(arguments.json, json.dumps(found, indent=2))
        return 1 if faults else 0
    for key, value in {**machine, "page faults": str(cost)}.items():
        print(f"{key:<11} {value}")
    print(f"{'kernels':<11} " + ("every tier agrees with the reference" if not faults else "FAULTY"))
    for fault in faults:
        print(f"  {fault}")
    wrong = [outcome for outcome in tried if not outcome.is_right]
    print(f"{'defects':<11} torch has {len(wrong) or 'none'} of {len(tried)} known ones on this processor")
    for outcome in wrong:
        print(f"  {outcome}")
    return 1 if faults else 0
