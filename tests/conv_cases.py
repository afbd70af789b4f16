# SPDX-License-Identifier: MIT
"""What tests of dense convolutions share."""

from __future__ import annotations

import torch
from torch import Tensor

LAST = torch.channels_last
FLOATS = (torch.float32, torch.float64)


def image(*size: int, dtype: torch.dtype = torch.float32, slices: bool = False) -> Tensor:
    """In channels_last; slices: of a tensor with more channels, rows and columns."""
    n, c, h, w = size
    if not slices:
        return torch.randn(size, dtype=dtype).contiguous(memory_format=LAST)
    return torch.randn(n, c + 3, h + 1, w + 2, dtype=dtype).contiguous(memory_format=LAST)[
        :, 1 : c + 1, 1:, 2:
    ]
