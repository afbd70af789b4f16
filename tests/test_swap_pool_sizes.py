# SPDX-License-Identifier: MIT
"""Which sizes of an adaptive pool the rules leave to torch."""

import pytest
import torch
from torch import nn

import opswap


@pytest.mark.parametrize(
    ("channels", "size", "output", "dtype", "ours"),
    [
        (64, 56, 1, torch.float32, 0),
        (64, 56, (1, 1), torch.float32, 0),
        (64, 56, 4, torch.float32, 1),
        (64, 56, 1, torch.bfloat16, 1),
        (48, 56, 1, torch.float32, 1),
        (96, 56, 1, torch.float32, 1),
        (64, 32, 1, torch.float32, 1),
    ],
)
def test_large_images_of_64_channels_become_one_pixel_by_torch(
    channels: int, size: int, output: int | tuple[int, int], dtype: torch.dtype, ours: int
) -> None:
    """In channels_last, where torch is faster, in training as in inference."""
    model = opswap.swap(nn.Sequential(nn.AdaptiveMaxPool2d(output)))
    batch = -(-(1 << 20) // (channels * size * size))
    x = torch.randn(batch, channels, size, size, dtype=dtype).contiguous(memory_format=torch.channels_last)
    opswap.reset_stats()
    model(x.requires_grad_())
    assert sum(opswap.stats()["kernel"].values()) == ours
