# SPDX-License-Identifier: MIT
"""What this machine runs, and whether the kernels agree with their references on it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as T
from torch import Tensor

import opswap
from opswap._table import short_name

from . import functional as F
from . import isa
from ._machine import cpu_model
from .ops import channels
from .ops.reduced_precision import slow_dtype

__all__ = ["check_kernels", "describe", "machine"]

_SHAPES = ((2, 6, 5, 7), (3, 12, 4, 4), (1, 58, 9, 3))
_FALLBACK = "the plain torch form ran in place of the kernel"
_DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8)


def machine() -> str:
    """Processor, instruction set, torch and threads in one line."""
    threads = torch.get_num_threads()
    return (
        f"{cpu_model()}, {isa.current()}, torch {torch.__version__}, {threads} thread{'s' * (threads != 1)}"
    )


def describe() -> dict[str, str]:
    """Versions, processor, instruction set tiers and threads, the most important first."""
    return {
        "opswap": opswap.__version__,
        "torch": torch.__version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        "cpu": cpu_model(),
        "isa tiers": ", ".join(isa.available()),
        "isa in use": isa.current(),
        "threads": str(torch.get_num_threads()),
        "16 bits": _describe_halves(),
    }


def _describe_halves() -> str:
    slow = [short_name(d) for d in (torch.bfloat16, torch.float16) if slow_dtype(d)]
    if not slow:
        return "torch's own convolutions and products"
    return f"{' and '.join(slow)} computed in float32 by models that are swapped in 16 bits or under autocast"


@dataclass(frozen=True)
class _Check:
    """An operator of (N, C, H, W) in two forms, and the largest difference between them, 0 for equal bits.

    everywhere: a kernel runs on every tier; else torch's own code may.
    """

    name: str
    ours: Callable[[Tensor], Any]
    theirs: Callable[[Tensor], Any]
    tolerance: float = 0.0
    everywhere: bool = True


def _maps(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as groups of rows, and a weight for them."""
    rows = x.flatten(2).transpose(1, 2).flatten(0, 1).unflatten(1, (2, -1))
    return rows, torch.linspace(-1, 1, 2 * 3 * rows.shape[2], dtype=x.dtype, device="cpu").view(2, 3, -1)


def _taps(x: Tensor) -> Tensor:
    return torch.linspace(-1, 1, 9 * x.shape[1], dtype=x.dtype, device="cpu").view(-1, 1, 3, 3)


def _weight(x: Tensor) -> Tensor:
    return torch.linspace(-1, 1, 5 * x.shape[1], dtype=x.dtype, device="cpu").view(5, -1, 1, 1)


_CHECKS = (
    _Check("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: T.max_pool2d(x, 3, 2, 1), 1e-6),
    _Check("avg_pool2d", lambda x: F.avg_pool2d(x, 2), lambda x: T.avg_pool2d(x, 2), 1e-5),
    _Check(
        "global_max_pool2d",
        F.global_max_pool2d,
        lambda x: T.adaptive_max_pool2d(x, 1),
    ),
    _Check(
        "batch_norm_relu",
        lambda x: F.batch_norm_relu(x, None, None, training=True),
        lambda x: T.batch_norm(x, None, None, training=True).relu(),
        1e-4,
    ),
    _Check(
        "grouped_linear",
        lambda x: F.grouped_linear(*_maps(x)),
        lambda x: torch.einsum("bgi,goi->bgo", *_maps(x)),
        1e-4,
    ),
    _Check(
        "pointwise_conv2d",
        lambda x: F.pointwise_conv2d(x, _weight(x)),
        lambda x: T.conv2d(x, _weight(x)),
        1e-4,
        everywhere=False,
    ),
    _Check(
        "depthwise_conv2d",
        lambda x: F.depthwise_conv2d(x, _taps(x), None, 1, 1),
        lambda x: T.conv2d(x, _taps(x), None, 1, 1, 1, x.shape[1]),
        1e-4,
        everywhere=False,
    ),
)


def check_kernels() -> list[str]:
    """Run kernels of every family and tier on small inputs and compare them with plain torch code.

    Channels are moved in several dtypes; the other families compute in float32, forward and backward, and are
    compared with float64.

    Returns: one line per fault, naming tier, operator, shape and memory format; empty if all is well.
    """
    faults = []
    for tier in isa.available():
        with isa.limit(tier):
            for shape in _SHAPES:
                for memory_format in (torch.contiguous_format, torch.channels_last):
                    found = {
                        f"channels, {dtype}": _check_one(shape, dtype, memory_format) for dtype in _DTYPES
                    }
                    found |= {check.name: _compare(check, shape, memory_format) for check in _CHECKS}
                    faults += [f"{tier}, {k}, {shape}, {memory_format}: {v}" for k, v in found.items() if v]
    return faults


def _compare(check: _Check, shape: tuple[int, ...], memory_format: torch.memory_format) -> str | None:
    x = _numbers(shape).contiguous(memory_format=memory_format).requires_grad_()
    before = opswap.stats()["kernel"]
    try:
        ours = _with_gradient(check.ours, x)
        if check.everywhere and opswap.stats()["kernel"] == before:
            return _FALLBACK
        results = (ours, _with_gradient(check.theirs, x.detach().double().requires_grad_()))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if all(
        (a - b.to(a.dtype)).abs().max() <= check.tolerance * b.abs().max()
        for a, b in zip(*results, strict=True)
    ):
        return None
    return "differs from torch"


def _with_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    output = function(x)
    return output, torch.autograd.grad(output, x, _numbers(output.shape).to(x.dtype))[0]


def _numbers(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator("cpu").manual_seed(0), dtype=torch.float32, device="cpu"
    )


def _check_one(shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format) -> str | None:
    total = 2 * torch.Size(shape).numel()
    values = torch.arange(total, device="cpu").remainder(113).to(dtype).view(2, *shape)
    inputs = [v.contiguous(memory_format=memory_format) for v in values]
    half = shape[1]
    before = opswap.stats()["kernel"]
    try:
        outputs = opswap.functional.cat_channel_shuffle_split(inputs, 2, (half, half))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if opswap.stats()["kernel"] == before:
        return _FALLBACK
    expected = channels.reference(inputs, 2, (half, half))
    if not all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True)):
        return "differs from the reference"
    return None
