# SPDX-License-Identifier: MIT
"""Run a function in two processes of one group at once, for tests of distributed training."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import opswap

__all__ = ["PROCESSES", "run_in_processes", "train_both"]

PROCESSES = 2


def run_in_processes(function: Callable[..., None], folder: Path, *args: object) -> None:
    """Call function(rank, *args) in each process, on one thread, and wait; an error in one is raised here.

    The processes are forked from one that has imported torch and opswap, once for all tests.
    """
    multiprocessing.set_forkserver_preload(["torch", "opswap"])
    store = f"{tempfile.mkdtemp(dir=folder)}/store"
    given = (function, store, args)
    torch.multiprocessing.start_processes(_in_group, given, PROCESSES, start_method="forkserver")


def train_both(
    folder: Path, make: Callable[[], nn.Module], size: tuple[int, ...], steps: int, **options: object
) -> list[dict[str, Tensor]]:
    """Train with DistributedDataParallel; return the state of the stock model and of the swapped one."""
    path = str(folder / "states.pt")
    run_in_processes(_train_both, folder, path, make, size, steps, options)
    return torch.load(path)


def _train_both(rank: int, path: str, make: Any, size: Any, steps: int, options: dict[str, Any]) -> None:
    states = []
    for swapped in (False, True):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(opswap.swap(make(), **options) if swapped else make())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        torch.manual_seed(1 + rank)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(size)).square().mean().backward()
            optimizer.step()
        states.append(model.module.state_dict())
    if rank == 0:
        torch.save(states, path)


def _in_group(rank: int, function: Callable[..., None], store: str, args: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    options = {"init_method": f"file://{store}", "rank": rank, "world_size": PROCESSES}
    torch.distributed.init_process_group("gloo", **options)
    try:
        function(rank, *args)
    finally:
        torch.distributed.destroy_process_group()
