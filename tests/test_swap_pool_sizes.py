# SPDX-License-Identifier: MIT
"""Which sizes, windows and dtypes of pools the rules leave to torch."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import opswap
from counted import kernels_of

LAST = torch.channels_last
PLANES = torch.contiguous_format


def kernels(
    model: nn.Module,
    size: tuple[int, ...],
    memory_format: torch.memory_format,
    dtype: torch.dtype = torch.float32,
    training: bool = True,
) -> int:
    """Calls of kernels in the forward of a swapped copy."""
    x = torch.randn(size, dtype=dtype).contiguous(memory_format=memory_format).requires_grad_(training)
    return kernels_of(model, x)


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
    assert kernels(model, (batch, channels, size, size), LAST, dtype) == ours


@pytest.mark.parametrize(
    ("pool", "size", "memory_format", "trained", "inferred"),
    [
        (nn.AdaptiveMaxPool1d(2), (16, 64, 128), PLANES, 1 << 17, 1 << 15),
        (nn.AdaptiveMaxPool2d(1), (16, 64, 16, 16), LAST, 3 << 17, 1 << 15),
        (nn.AdaptiveMaxPool2d(2), (16, 64, 16, 16), LAST, 1 << 19, 1 << 15),
        (nn.AdaptiveMaxPool2d((4, 1)), (16, 64, 16, 16), PLANES, 1 << 15, 1 << 15),
        (nn.AdaptiveMaxPool3d(1), (16, 16, 4, 8, 8), PLANES, 1 << 15, 1 << 15),
        (nn.AdaptiveMaxPool3d(2), (16, 16, 4, 8, 8), torch.channels_last_3d, 1 << 17, 1 << 15),
    ],
    ids=str,
)
def test_an_adaptive_pool_gains_earlier_in_inference(
    pool: nn.Module, size: tuple[int, ...], memory_format: torch.memory_format, trained: int, inferred: int
) -> None:
    model = opswap.swap(pool, strict=True)
    image = torch.Size(size[1:]).numel()
    for training, fewest in ((True, trained), (False, inferred)):
        batch = fewest // image
        assert kernels(model, (batch, *size[1:]), memory_format, training=training) == 1
        few = (batch, size[1] - 1, *size[2:])
        assert kernels(model, few, memory_format, training=training) == 0


def test_small_planes_of_float16_are_scattered_by_torch() -> None:
    model = opswap.swap(nn.AdaptiveMaxPool2d(1), strict=True)
    for batch, calls in ((32, 0), (64, 1)):
        assert kernels(model, (batch, 512, 7, 7), LAST, torch.float16) == calls
    assert kernels(model, (32, 512, 7, 7), LAST, torch.bfloat16) == 1


@pytest.mark.parametrize(
    ("pool", "size", "ours"),
    [
        (nn.AdaptiveMaxPool2d(2), (2, 64, 44, 44), 1),  # 22 rows of 44 elements
        (nn.AdaptiveMaxPool2d(2), (2, 64, 46, 46), 0),
        (nn.AdaptiveMaxPool2d((8, 1)), (32, 2, 64, 64), 1),
        (nn.AdaptiveMaxPool2d((1, 8)), (32, 2, 64, 64), 0),
        (nn.AdaptiveMaxPool2d((None, 1)), (32, 2, 64, 64), 1),
        (nn.AdaptiveMaxPool2d(1), (32, 2, 64, 64), 1),
        (nn.AdaptiveMaxPool1d(4), (8, 64, 1024), 1),
        (nn.AdaptiveMaxPool1d(4), (8, 64, 1025), 0),
        (nn.AdaptiveMaxPool1d(1), (8, 64, 1025), 1),
        (nn.AdaptiveMaxPool3d(2), (8, 16, 8, 8, 8), 0),
        (nn.AdaptiveMaxPool3d(1), (8, 16, 8, 8, 8), 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [True, False])
def test_large_contiguous_windows_stay_torchs(
    pool: nn.Module, size: tuple[int, ...], ours: int, training: bool
) -> None:
    """An output row reads more input than the tile of a kernel holds, so that scalar code runs."""
    model = opswap.swap(pool, strict=True)
    assert kernels(model, size, PLANES, training=training) == ours
    explained = str(opswap.explain(model, torch.randn(size).requires_grad_(training)))
    assert ("large contiguous windows" in explained) == (not ours)


@pytest.mark.parametrize(
    ("pool", "size"),
    [
        (nn.AvgPool2d(2), (8, 64, 56, 56)),
        (nn.AvgPool3d((1, 2, 2)), (4, 16, 4, 56, 56)),
        (nn.AdaptiveMaxPool1d(1), (32, 64, 256)),
        (nn.AdaptiveMaxPool2d(1), (8, 64, 56, 56)),
        (nn.AdaptiveMaxPool3d(1), (8, 64, 8, 14, 14)),
    ],
    ids=str,
)
def test_float64_stays_torchs(pool: nn.Module, size: tuple[int, ...]) -> None:
    model = opswap.swap(pool, strict=True)
    assert kernels(model, size, PLANES, torch.float32) == 1
    for training in (True, False):
        assert kernels(model, size, PLANES, torch.float64, training) == 0


class Amax(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.amax((2, 3))


def test_amax_of_float64_is_replaced_in_training_alone() -> None:
    model = opswap.swap(Amax(), strict=True)
    assert kernels(model, (8, 64, 56, 56), PLANES, torch.float64, training=True) == 1
    assert kernels(model, (8, 64, 56, 56), PLANES, torch.float64, training=False) == 0


@pytest.mark.parametrize(
    ("pool", "channels"),
    [(nn.AvgPool2d(2), 512), (nn.AvgPool2d(3, 1, 1), 43)],  # 256 elements each, and 2304 reads
    ids=str,
)
def test_an_average_of_bfloat16_gains_earlier_in_training(pool: nn.Module, channels: int) -> None:
    model = opswap.swap(pool, strict=True)
    for c, calls in ((channels, 1), (channels - 1, 0)):
        assert kernels(model, (1, c, 16, 16), LAST, torch.bfloat16) == calls
        assert kernels(model, (1, c, 16, 16), LAST, torch.bfloat16, training=False) == 0
        assert kernels(model, (1, c, 16, 16), LAST, torch.float32) == 0


@pytest.mark.parametrize(
    ("pool", "channels"),
    [(nn.AvgPool2d(3, 1, 1), 15), (nn.AvgPool2d(3, 2, 1), 57), (nn.AvgPool2d(2), 64)],
    ids=str,
)
def test_overlapping_windows_of_planes_count_what_they_read(pool: nn.Module, channels: int) -> None:
    """Of 16 x 16 pixels: 2304 and 576 reads of each plane, of 32,768 in all; without overlap 16,384 elements."""
    model = opswap.swap(pool, strict=True)
    for c, calls in ((channels, 1), (channels - 1, 0)):
        assert kernels(model, (1, c, 16, 16), PLANES) == calls


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("pool", "planes", "pixels"),
    [
        (nn.MaxPool2d(28), 0, 0),
        (nn.MaxPool2d((28, 1), 1), 1, 1),
        (nn.MaxPool2d((1, 28), 1), 0, 1),  # one column
        (nn.MaxPool2d(12), 0, 0),  # 144 taps
        (nn.MaxPool2d((11,)), 0, 1),  # 121 taps
        (nn.MaxPool2d(13, 1, padding=6), 1, 1),
        (nn.MaxPool2d(4), 0, 1),
        (nn.MaxPool2d(3), 0, 1),
        (nn.MaxPool2d((1, 3)), 1, 1),
        (nn.MaxPool2d((4, 1)), 1, 1),
        (nn.MaxPool2d(2), 1, 1),
        (nn.MaxPool2d(5, 3), 1, 1),
        (nn.MaxPool2d((13, 17), 5), 0, 1),  # three columns
    ],
    ids=str,
)
def test_maxima_of_windows_that_share_little_stay_torchs(
    pool: nn.Module, planes: int, pixels: int, training: bool
) -> None:
    model = opswap.swap(pool, strict=True)
    for memory_format, ours in ((PLANES, planes), (LAST, pixels)):
        assert kernels(model, (2, 8, 28, 28), memory_format, training=training) == ours
        x = torch.randn(2, 8, 28, 28).contiguous(memory_format=memory_format).requires_grad_(training)
        assert ("windows that share little" in str(opswap.explain(model, x))) == (not ours)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("pool", "ours"),
    [
        (nn.MaxPool3d((1, 28, 28)), 0),
        (nn.MaxPool3d((1, 14, 14)), 0),
        (nn.MaxPool3d((4, 28, 28)), 0),
        (nn.MaxPool3d(4), 0),
        (nn.MaxPool3d((1, 1, 28), 1), 0),  # one column
        (nn.MaxPool3d((1, 13, 17), (1, 5, 5)), 0),  # three columns
        (nn.MaxPool3d((1, 3, 3), (2, 3, 3)), 0),  # every other plane is read
        (nn.MaxPool3d((1, 5, 5), (1, 3, 3)), 1),
        (nn.MaxPool3d((1, 3, 3), (2, 1, 2)), 1),
        (nn.MaxPool3d((1, 28, 1), 1), 1),
        (nn.MaxPool3d((1, 1, 3)), 1),
        (nn.MaxPool3d((4, 1, 1)), 1),
        (nn.MaxPool3d(2), 1),
        (nn.MaxPool3d((3,), 1, (1,)), 1),
    ],
    ids=str,
)
def test_maxima_over_volumes_of_windows_that_share_little_stay_torchs(
    pool: nn.Module, ours: int, training: bool
) -> None:
    model = opswap.swap(pool, strict=True)
    for size in ((2, 8, 4, 28, 28), (2, 8, 28, 28)):
        assert kernels(model, size, PLANES, training=training) == ours
        x = torch.randn(size).requires_grad_(training)
        assert ("windows that share little" in str(opswap.explain(model, x))) == (not ours)
    # torch refuses the first, and is slower on the second.
    assert kernels(model, (2, 8, 28, 28), LAST, training=training) == 1
    assert kernels(model, (2, 8, 4, 28, 28), torch.channels_last_3d, training=training) == 1


@pytest.mark.parametrize(
    "pool", [nn.MaxPool3d((1, 40, 40)), nn.MaxPool3d((1, 28, 28), padding=99), nn.MaxPool3d((1, 28))], ids=str
)
def test_maxima_over_volumes_raise_as_torchs(pool: nn.Module) -> None:
    x, model = torch.randn(2, 8, 28, 28), opswap.swap(copy.deepcopy(pool), strict=True)
    with pytest.raises((RuntimeError, IndexError)):
        pool(x)
    with pytest.raises((RuntimeError, IndexError)):
        model(x)
