# SPDX-License-Identifier: MIT
"""`python3 -m opswap doctor`: what this machine runs, and whether the kernels are right on it."""

from __future__ import annotations

import argparse
import json

from opswap._command_line import Commands, add_command, add_json, write_json

__all__ = ["add"]


def add(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command to a command line."""
    parser = add_command(
        commands,
        "doctor",
        help="print versions and processor, and check every kernel tier",
        description="Print versions, processor, instruction sets and threads. Run kernels of every family on every "
        "instruction set, and compare them with torch's code.",
        examples="doctor\ndoctor --json -",
        statuses={0: "every kernel agrees with torch", 1: "a kernel does not"},
        run=_run,
    )
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from opswap.doctor import check_kernels, describe

    machine, faults = describe(), check_kernels()
    if arguments.json is not None:
        write_json(arguments.json, json.dumps({"machine": machine, "faults": faults}, indent=2))
        return 1 if faults else 0
    for key, value in machine.items():
        print(f"{key:<11} {value}")
    print(f"{'kernels':<11} " + ("every tier agrees with the reference" if not faults else "FAULTY"))
    for fault in faults:
        print(f"  {fault}")
    return 1 if faults else 0
