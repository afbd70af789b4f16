# SPDX-License-Identifier: MIT
"""What tests of dense convolutions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LAST = torch.channels_last
FLOATS = (torch.float32, torch.float64)
# Calls that torch refuses, from an input, a weight and a bias that fit.
BAD_CALLS: tuple[Callable[[Tensor, Tensor, Tensor], tuple[Any, ...]], ...] = (
    lambda x, w, b: (x, w, b[:5]),
    lambda x, w, b: (x[:, :, :2, :2], w, b),
    lambda x, w, b: (x, w.double(), b),
    lambda x, w, b: (x, w, b, 1.5),
    lambda x, w, b: (x, w, b, (1, 1, 1)),
    lambda x, w, b: (x, w, b, 1, "other"),
    lambda x, w, b: (x, None, b),
    lambda x, w, b: (None, w, b),
    lambda x, w, b: (x, w, [1.0]),
)


def image(*size: int, dtype: torch.dtype = torch.float32, slices: bool = False) -> Tensor:
    """In channels_last; slices: of a tensor with more channels, rows and columns."""
    n, c, h, w = size
    if not slices:
        return torch.randn(size, dtype=dtype).contiguous(memory_format=LAST)
    return torch.randn(n, c + 3, h + 1, w + 2, dtype=dtype).contiguous(memory_format=LAST)[
        :, 1 : c + 1, 1:, 2:
    ]
