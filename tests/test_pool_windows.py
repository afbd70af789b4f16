# SPDX-License-Identifier: MIT
"""Max pools whose windows have loops of their own: every width around the vectors, rows at both ends of the
memory, planes cut by threads, a NaN in any place, and gradients whose sums are awkward to round.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as T

from inputs import same_bits
from opswap import _core
from opswap import functional as F
from pool_cases import alike, gradient, ties
from threads import on_threads

WINDOWS = (
    (3, 1, 0),
    (3, 1, 1),
    (3, 2, 0),
    (3, 2, 1),
    (2, 2, 0),
    (2, 2, 1),
    (3, (1, 2), 0),
    (3, (1, 2), (1, 0)),
    (3, (1, 2), (0, 1)),
)
# Whose rows serve several windows, whose gradients are scattered, and more taps than a byte can number.
LARGE = (
    (4, 1, 2),
    (5, 1, 2),
    (5, 2, 2),
    (7, 1, 3),
    (8, 4, 2),
    (13, 1, 6),
    (17, 1, 8),
    ((3, 5), (1, 3), (1, 2)),
    ((1, 20), 1, (0, 10)),
    ((20, 1), (2, 1), (10, 0)),
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def compare(x: torch.Tensor, window: tuple[object, ...], grad: torch.Tensor | None = None) -> None:
    want, want_indices = T.max_pool2d(x, *window, return_indices=True)
    got, indices = F.max_pool2d(x, *window, return_indices=True)
    assert alike(got, want) and torch.equal(indices, want_indices), (tuple(x.shape), window)
    assert alike(F.max_pool2d(x, *window), want), (tuple(x.shape), window)
    grad = torch.randn(want.shape) if grad is None else grad
    want = gradient(T.max_pool2d, x, grad, *window)
    assert alike(gradient(F.max_pool2d, x, grad, *window), want), (tuple(x.shape), window)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_every_width_and_height(window: tuple[object, ...], ceil_mode: bool, tier: str) -> None:
    for width in (*range(3, 21), 31, 32, 33, 34, 49, 65):
        dtype, planes = DTYPES[width % 3], ((1, 1), (2, 3))[width % 2]
        compare(ties((*planes, 3 + width % 6, width), dtype), (*window, 1, ceil_mode))


@pytest.mark.parametrize("window", WINDOWS[::2], ids=str)
def test_a_nan_in_any_place(window: tuple[object, ...], tier: str) -> None:
    for size in ((5, 10), (4, 21)):
        for place in range(size[0] * size[1]):
            x = torch.randn(1, 2, *size)
            x.view(2, -1)[1, place] = float("nan")
            want, want_indices = T.max_pool2d(x, *window, return_indices=True)
            got, indices = F.max_pool2d(x, *window, return_indices=True)
            assert alike(got, want) and torch.equal(indices, want_indices), (size, place)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows_of_the_lowest_value_name_their_first_tap(window: tuple[object, ...], tier: str) -> None:
    x = torch.full((1, 2, 7, 19), -float("inf"))
    x[0, 1, 3:, 9:] = torch.randn(4, 10)
    compare(x, window)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_planes_cut_by_threads(window: tuple[object, ...], tier: str) -> None:
    with on_threads(2):
        compare(ties((1, 1, 301, 303), torch.float32), window)
        compare(ties((1, 3, 151, 303), torch.bfloat16), window)


@pytest.mark.parametrize("window", LARGE, ids=str)
def test_large_windows(window: tuple[object, ...], tier: str) -> None:
    for i, dtype in enumerate((*DTYPES, torch.float64)):
        x = ties((2, (17, 40, 66, 1)[i], 14 + i, 15), dtype)
        compare(x.contiguous(memory_format=torch.channels_last), window)
        compare(x[:, :9].contiguous(), window)


@pytest.mark.parametrize("window", LARGE[::3], ids=str)
def test_large_windows_in_blocks_of_channels(window: tuple[object, ...], tier: str) -> None:
    for channels in (1040, 1047):
        x = ties((1, channels, 9, 70), torch.float32).contiguous(memory_format=torch.channels_last)
        compare(x, window)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_large_windows_with_a_channel_step(step: int, tier: str) -> None:
    for kernel, stride, padding in ((5, 1, 2), (5, 2, 0), (9, 1, 4), (3, 1, 1)):
        window = (1, kernel, kernel), (step, stride, stride), (0, padding, padding)
        for dtype in DTYPES:
            x = ties((2, 67, 12, 13), dtype)
            last = x.contiguous(memory_format=torch.channels_last)
            want, want_indices = T.max_pool3d(x, *window, return_indices=True)
            got, indices = F.max_pool3d(last, *window, return_indices=True)
            assert alike(got, want) and torch.equal(indices, want_indices), (kernel, dtype)
            assert alike(F.max_pool3d(last, *window), want), (kernel, dtype)
            grad = torch.randn(want.shape)
            want = gradient(T.max_pool3d, x, grad, *window)
            assert alike(gradient(F.max_pool3d, last, grad, *window), want), (kernel, dtype)


def test_large_windows_cut_by_threads(tier: str) -> None:
    x = ties((3, 40, 31, 29), torch.float32).contiguous(memory_format=torch.channels_last)
    for threads in (2, 3):
        with on_threads(threads):
            compare(x, (5, 1, 2))
            compare(x, (13, 2, 6))
            compare(x[:1, :5].contiguous(), (5, 1, 2))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("kernel", [5, 17])
def test_offsets_that_no_pool_wrote(kernel: int, memory_format: torch.memory_format, tier: str) -> None:
    """They name no position outside the gradient, whatever they are."""
    window = (kernel, kernel), (1, 1), (kernel // 2, kernel // 2), (1, 1)
    grad = torch.ones(2, 24, 18, 18).contiguous(memory_format=memory_format)
    low, high, dtype = (-(2**31), 2**31, torch.int32) if kernel == 17 else (0, 256, torch.uint8)
    offsets = torch.randint(low, high, grad.shape, dtype=dtype).contiguous(memory_format=memory_format)
    last = memory_format is torch.channels_last
    got = _core.max_pool_backward(grad, offsets, tuple(grad.shape), *window, 1, last)
    assert got.min() >= 0 and got.sum() <= grad.sum()


def awkward(size: tuple[int, ...], dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Gradients: sums that lie halfway between two numbers, too large, too small, no numbers."""
    largest = torch.finfo(dtype).max
    yield torch.randint(128, 256, size).to(dtype) * 2.0 ** torch.randint(-3, 3, size)
    yield torch.full(size, 0.75 * largest)
    yield torch.where(torch.rand(size) < 0.5, largest, -largest)
    yield torch.randint(-300, 300, size) * torch.finfo(dtype).smallest_normal / 128
    yield torch.where(torch.rand(size) < 0.1, float("inf"), torch.randn(size))
    yield torch.where(torch.rand(size) < 0.1, float("nan"), torch.randn(size))
    yield torch.where(torch.rand(size) < 0.5, -0.0, 0.0)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", (*WINDOWS[:7:2], *LARGE[1:7:5]), ids=str)
def test_awkward_gradients(
    window: tuple[object, ...], dtype: torch.dtype, channels_last: bool, tier: str
) -> None:
    x = torch.randint(-2, 3, (2, 9, 11, 37)).to(dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    for grad in awkward(tuple(T.max_pool2d(x, *window).shape), dtype):
        compare(x, window, grad.to(dtype))


def test_gradients_that_are_one_image_expanded(tier: str) -> None:
    x = torch.randn(3, 2, 9, 17)
    for grad in (torch.randn(1, 2, 4, 8), torch.randn(1, 1, 4, 8), torch.randn(3, 1, 4, 8)):
        grad = grad.expand(3, 2, 4, 8)
        want = gradient(T.max_pool2d, x, grad.contiguous(), 2, 2)
        assert same_bits(gradient(F.max_pool2d, x, grad, 2, 2), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_larger_than_the_caches(dtype: torch.dtype, tier: str) -> None:
    for width in (520, 528, 1040):
        x = torch.randint(-9, 9, (1, 18, 480, width)).to(dtype)
        grad = torch.randn(T.max_pool2d(x, 2).shape).to(dtype)
        want = gradient(T.max_pool2d, x, grad, 2, 2)
        assert same_bits(gradient(F.max_pool2d, x, grad, 2, 2), want), width


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 9)], ids=str)
def test_fewer_outputs_than_windows(size: tuple[int, int], tier: str) -> None:
    """Gradients of part of the output, as the kernel's own interface allows: the rest of the input gets zeros."""
    for kernel, stride in ((3, 1), (3, 2), (2, 2)):
        grad, offsets = torch.randn(2, 3, *size), torch.randint(0, kernel**2, (2, 3, *size)).byte()
        window = (kernel, kernel), (stride, stride), (0, 0), (1, 1)
        got = _core.max_pool_backward(grad, offsets, (2, 3, 40, 70), *window, 1, False)
        reach = [kernel + stride * (n - 1) for n in size]
        part = _core.max_pool_backward(grad, offsets, (2, 3, *reach), *window, 1, False)
        want = torch.zeros(2, 3, 40, 70)
        want[:, :, : reach[0], : reach[1]] = part
        assert same_bits(got, want), (kernel, stride)


@pytest.mark.parametrize("kernel_size", [(46341, 46341), (65536, 32768)])
def test_more_taps_than_an_offset_can_number(kernel_size: tuple[int, int]) -> None:
    window = {"padding": tuple(k // 2 for k in kernel_size), "stride": kernel_size}
    found = []
    for pool in (T.max_pool2d, F.max_pool2d):
        x = (torch.arange(128.0) * 7 % 31).view(1, 8, 4, 4).requires_grad_()
        y = pool(x, kernel_size, **window)
        y.sum().backward()
        with_indices = pool(x.detach(), kernel_size, **window, return_indices=True)
        found.append((y, x.grad, *with_indices))
    for mine, stock in zip(*found, strict=True):
        assert torch.equal(mine, stock)
