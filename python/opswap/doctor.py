# SPDX-License-Identifier: MIT
"""What this machine runs, and whether the kernels agree with their references on it."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import torch

import opswap

from . import isa
from .ops import channels

__all__ = ["check_kernels", "cpu_model", "describe"]

_SHAPES = ((2, 6, 5, 7), (3, 12, 4, 4), (1, 58, 9, 3))
_DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8)


def cpu_model() -> str:
    """The processor's name as the operating system gives it, or its architecture where it gives none."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def describe() -> dict[str, str]:
    """Versions, processor, instruction set tiers and threads, the most asked for first."""
    return {
        "opswap": opswap.__version__,
        "torch": torch.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "cpu": cpu_model(),
        "isa tiers": ", ".join(isa.available()),
        "isa in use": isa.current(),
        "threads": str(torch.get_num_threads()),
    }


def check_kernels() -> list[str]:
    """Run the channel kernels of every tier on small inputs and compare them with the plain torch reference.

    Returns: one line a fault, naming tier, shape, dtype and memory format; empty where all is well.
    """
    faults = []
    for tier in isa.available():
        with isa.limit(tier):
            for shape in _SHAPES:
                for dtype in _DTYPES:
                    for memory_format in (torch.contiguous_format, torch.channels_last):
                        fault = _check_one(shape, dtype, memory_format)
                        if fault:
                            faults.append(f"{tier}, {shape}, {dtype}, {memory_format}: {fault}")
    return faults


def _check_one(shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format) -> str | None:
    total = 2 * torch.Size(shape).numel()
    values = torch.arange(total).remainder(113).to(dtype).view(2, *shape)
    inputs = [v.contiguous(memory_format=memory_format) for v in values]
    half = shape[1]
    before = opswap.stats()["kernel"]
    try:
        outputs = opswap.functional.cat_channel_shuffle_split(inputs, 2, (half, half))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if opswap.stats()["kernel"] == before:
        return "the plain torch form ran in place of the kernel"
    expected = channels.reference(inputs, 2, (half, half))
    if not all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True)):
        return "differs from the reference"
    return None
