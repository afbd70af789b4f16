# SPDX-License-Identifier: MIT
"""Dropout at the shapes of LPRNet and of a ShuffleNetV2 head, against torch's, which draws the same numbers.

Every call begins at the same place of the generator's sequence, so that the results can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import LAYOUTS, Case, shape_text

__all__ = ["cases"]

_SIZES = ((64, 18, 44), (256, 18, 16), (1024,))
_DTYPES = (torch.float32, torch.bfloat16)


def cases(batch: int) -> Iterator[Case]:
    """Training, both directions; LPRNet's shapes at twice the batch, as with its pools."""
    for size in _SIZES:
        shape = (2 * batch, *size)
        for dtype in _DTYPES:
            for layout, memory_format in LAYOUTS.items():
                if len(shape) == 2 and layout != "NCHW":
                    continue
                for direction in ("forward", "backward"):
                    build = partial(_build, shape, dtype, memory_format, direction)
                    short = short_name(dtype)
                    payload = torch.Size(shape).numel() * dtype.itemsize
                    text = shape_text(shape)
                    ours = {"opswap": layout}
                    yield Case(
                        "dropout", text, short, direction, build, ours, payload, 0.0, direction == "forward"
                    )


def _build(
    shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format, direction: str
) -> dict[str, Callable[[], Tensor]]:
    x = torch.randn(shape).to(dtype)
    if x.dim() == 4:
        x = x.contiguous(memory_format=memory_format)
    x.requires_grad_()
    forms = {"torch": T.dropout, "opswap": F.dropout}
    if direction == "forward":
        return {name: partial(_forward, function, x) for name, function in forms.items()}
    grad = torch.randn_like(x)
    return {name: partial(_backward, _forward(function, x), x, grad) for name, function in forms.items()}


def _forward(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    torch.default_generator.manual_seed(0)
    return function(x, 0.5)


def _backward(output: Tensor, x: Tensor, grad: Tensor) -> Tensor:
    return torch.autograd.grad(output, x, grad, retain_graph=True)[0]
