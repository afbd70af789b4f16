# SPDX-License-Identifier: MIT
"""Swapped models under DDP and FSDP2, two processes over gloo: every spelling takes the step of the stock model."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import opswap
from processes import PROCESSES, run_in_processes
from spellings import SPELLINGS, Spelling


def _step(model: nn.Module, x: Tensor) -> list[Tensor | None]:
    y = model(x)
    weight = torch.linspace(-1, 1, y.numel()).view_as(y)
    (y * weight).sum().backward()
    grads = [p.grad for p in model.parameters()]
    return [y.detach(), *(g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads)]


def _compare(spelling: Spelling, stock: nn.Module, model: nn.Module, x: Tensor) -> None:
    ours, theirs = (_step(m, x) for m in (model, stock))
    for a, b in zip(ours, theirs, strict=True):
        if spelling.strided:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=spelling.name)
        else:
            assert torch.equal(a, b), spelling.name


def _shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The children, then the rest, as users of FSDP2 do."""
    for child in model.children():
        if (
            not isinstance(child, (nn.ModuleList, nn.ModuleDict))
            and next(child.parameters(), None) is not None
        ):
            fsdp.fully_shard(child, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


def _run(rank: int) -> None:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for spelling in SPELLINGS:
        torch.manual_seed(0)
        stock = spelling.make()
        if next(stock.parameters(), None) is None:
            continue
        model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
        torch.manual_seed(rank)
        x = torch.randn(spelling.shape)
        twins = [DistributedDataParallel(copy.deepcopy(m)) for m in (stock, model)]
        _compare(spelling, *twins, x)
        _compare(spelling, _shard(stock, mesh), _shard(model, mesh), x)


def test_every_spelling(tmp_path: Path) -> None:
    run_in_processes(_run, tmp_path)
