# SPDX-License-Identifier: MIT
"""Pools that work on whole planes, on eight planes at a time or on long rows of channels: every size around the
vectors, tiles and blocks, a NaN in any place, zeros of either sign, and maxima that are not alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

from inputs import same_bits
from opswap import functional as F
from pool_cases import alike, amax, gradient, split, ties
from threads import on_threads

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last)
PLANES = ((1, 1), (3, 5), (4, 4), (1, 17), (7, 9), (8, 8), (5, 13), (16, 12), (31, 33))
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_format = pytest.mark.parametrize("memory_format", MEMORY_FORMATS, ids=str)


@pytest.fixture
def three_threads() -> Iterator[None]:
    with on_threads(3):
        yield


def compare_global(x: Tensor) -> None:
    """Values, indices and both gradients of the maxima of whole planes."""
    want, want_indices = T.adaptive_max_pool2d(x, 1, return_indices=True)
    got, indices = F.adaptive_max_pool2d(x, 1, return_indices=True)
    assert alike(got, want) and torch.equal(indices, want_indices), x.shape
    assert alike(F.global_max_pool2d(x), want), x.shape
    assert alike(split(x), want.flatten(1)), x.shape
    assert alike(split(x.detach().requires_grad_()).detach(), want.flatten(1)), x.shape
    grad = torch.randn(x.shape[:2]).to(x.dtype)
    assert alike(gradient(split, x, grad), gradient(amax, x, grad)), x.shape
    want = gradient(T.adaptive_max_pool2d, x, grad[..., None, None], 1)
    assert same_bits(gradient(F.global_max_pool2d, x, grad[..., None, None]), want), x.shape


@every_dtype
@every_format
def test_global_maxima_of_every_size(
    dtype: torch.dtype, memory_format: torch.memory_format, tier: str
) -> None:
    for i, plane in enumerate(PLANES):
        for channels in (1, 8, 16, 17, 33, (40, 70, 130)[i % 3]):
            size = (2, channels, *plane)
            for x in (torch.randn(size).to(dtype), ties(size, dtype)):
                compare_global(x.contiguous(memory_format=memory_format))


@every_dtype
@every_format
def test_blocks_of_channels(dtype: torch.dtype, memory_format: torch.memory_format, tier: str) -> None:
    """More channels than a block has; few of the maxima are not alone, so that these are shared one by one."""
    x = torch.randn(2, 1100, 3, 4).to(dtype)
    x[0, ::50] = x[0, ::50].clamp(max=0.25)
    x[1, ::90, 1, 1] = float("nan")
    compare_global(x.contiguous(memory_format=memory_format))


@every_dtype
@every_format
@pytest.mark.parametrize("sign", [1, -1])
def test_a_nan_in_any_place(
    dtype: torch.dtype, memory_format: torch.memory_format, sign: int, tier: str
) -> None:
    for place in range(35):
        x = torch.randn(1, 19, 5, 7).to(dtype).contiguous(memory_format=memory_format)
        x[0, place % 19, place // 7, place % 7] = torch.tensor(float("nan")).copysign(torch.tensor(sign))
        x[0, place % 19, 2, 3] = torch.tensor(float("nan")).copysign(torch.tensor(-sign))
        compare_global(x)


@every_dtype
@every_format
def test_zeros_of_either_sign_and_infinities(
    dtype: torch.dtype, memory_format: torch.memory_format, tier: str
) -> None:
    for values in ((0.0, -0.0), (-0.0, -1.0), (0.0, -0.0, -1.0), (float("-inf"),), (float("inf"), 0.0)):
        x = torch.tensor(values)[torch.randint(0, len(values), (2, 35, 5, 14))].to(dtype)
        compare_global(x.contiguous(memory_format=memory_format))


def test_more_positions_than_sixteen_bits_count() -> None:
    x = torch.zeros(1, 16, 257, 257).bfloat16().contiguous(memory_format=torch.channels_last)
    x[0, :, 256, 200] = 1
    x[0, 3, 256, 201] = 1
    compare_global(x)


@every_dtype
def test_adaptive_sizes_of_large_planes(dtype: torch.dtype, tier: str) -> None:
    """Planes that take several tiles, rows that are too long for one, and groups of fewer than eight."""
    cases = (
        ((1, 9, 70, 33), (7, 5)),
        ((2, 3, 45, 29), (20, 29)),
        ((1, 8, 3, 1500), (2, 3)),
        ((1, 17, 6, 5), 4),
    )
    for size, output_size in cases:
        x = ties(size, dtype)
        want, want_indices = T.adaptive_max_pool2d(x, output_size, return_indices=True)
        got, indices = F.adaptive_max_pool2d(x, output_size, return_indices=True)
        assert alike(got, want) and torch.equal(indices, want_indices), size
        assert alike(F.adaptive_max_pool2d(x, output_size), want), size


def compare_averages(x: Tensor, *window: Any) -> None:
    want = T.avg_pool2d(x, *window)
    assert same_bits(F.avg_pool2d(x, *window), want), (x.shape, window)
    grad = torch.randn(want.shape).to(x.dtype)
    assert same_bits(gradient(F.avg_pool2d, x, grad, *window), gradient(T.avg_pool2d, x, grad, *window)), (
        x.shape,
        window,
    )


@every_dtype
@every_format
def test_averages_of_large_planes(dtype: torch.dtype, memory_format: torch.memory_format, tier: str) -> None:
    cases = (
        ((1, 9, 50, 40), (3, 2, 1)),
        ((2, 5, 41, 37), (5, 5)),
        ((1, 17, 33, 45), ((4, 10), (4, 2))),
        ((1, 3, 12, 700), (2, 1)),
        ((1, 2, 9, 40), (3, 1, 1, True, False)),
        ((1, 8, 37, 50), (2, 3, 1, True)),
    )
    for size, window in cases:
        compare_averages(torch.randn(size).to(dtype).contiguous(memory_format=memory_format), *window)


@every_dtype
def test_averages_of_many_channels(dtype: torch.dtype, tier: str) -> None:
    """More than a block of the gradient holds, in each dtype, also of every second channel of images."""
    for channels, width in ((1100, 4), (264, 70)):
        x = torch.randn(1, channels, 5, width).to(dtype).contiguous(memory_format=torch.channels_last)
        compare_averages(x, 3, 2, 1)
        wide = x.float().contiguous()
        want = T.avg_pool3d(wide, (1, 3, 3), (2, 1, 2)).to(dtype)
        assert same_bits(F.avg_pool3d(x, (1, 3, 3), (2, 1, 2)), want)
        grad = torch.randn(want.shape).to(dtype)
        got = gradient(F.avg_pool3d, x, grad, (1, 3, 3), (2, 1, 2))
        want = gradient(T.avg_pool2d, x[:, ::2].contiguous(), grad, 3, (1, 2))
        assert same_bits(got[:, ::2], want) and not got[:, 1::2].any()


@every_format
@pytest.mark.usefixtures("three_threads")
def test_planes_cut_by_threads(memory_format: torch.memory_format, tier: str) -> None:
    x = torch.randn(3, 31, 44, 41).contiguous(memory_format=memory_format)
    compare_averages(x, 3, 2, 1)
    compare_averages(x, 3, 1, 1)
    compare_global(x)
    images = x[:1]
    assert same_bits(
        F.avg_pool3d(images, (1, 2, 2), (3, 2, 2)), T.avg_pool3d(images.contiguous(), (1, 2, 2), (3, 2, 2))
    )
    grad = torch.randn(1, 11, 22, 20)
    dense = images.contiguous()
    want = gradient(T.avg_pool3d, dense, grad, (1, 2, 2), (3, 2, 2))
    assert same_bits(gradient(F.avg_pool3d, images, grad, (1, 2, 2), (3, 2, 2)), want)
