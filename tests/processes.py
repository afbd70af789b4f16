# SPDX-License-Identifier: MIT
"""Run a function in two processes of one group at once, for tests of distributed training."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["PROCESSES", "run_in_processes"]

PROCESSES = 2


def run_in_processes(function: Callable[..., None], folder: Path, *args: object) -> None:
    """Call function(rank, *args) in each process, on one thread, and wait; an error in one is raised here.

    The processes are forked from one that has imported torch and opswap, once for all tests.
    """
    multiprocessing.set_forkserver_preload(["torch", "opswap"])
    store = f"{tempfile.mkdtemp(dir=folder)}/store"
    given = (function, store, args)
    torch.multiprocessing.start_processes(_in_group, given, PROCESSES, start_method="forkserver")


def _in_group(rank: int, function: Callable[..., None], store: str, args: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    options = {"init_method": f"file://{store}", "rank": rank, "world_size": PROCESSES}
    torch.distributed.init_process_group("gloo", **options)
    try:
        function(rank, *args)
    finally:
        torch.distributed.destroy_process_group()
