# SPDX-License-Identifier: MIT
"""Run a function in two processes at once, for tests of distributed training."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import torch

__all__ = ["PROCESSES", "run_in_processes"]

PROCESSES = 2


def run_in_processes(function: Callable[..., None], *args: object) -> None:
    """Call function(rank, *args) in each process and wait; an error in one is raised here.

    The processes are forked from one that has imported torch and opswap, once for all tests.
    """
    multiprocessing.set_forkserver_preload(["torch", "opswap"])
    torch.multiprocessing.start_processes(function, args, PROCESSES, start_method="forkserver")
