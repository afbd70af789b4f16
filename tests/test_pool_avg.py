# SPDX-License-Identifier: MIT
"""Average pools against torch's: values, gradients, layouts, options, and their error against float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

import opswap
from inputs import LAYOUTS, same_bits
from nearness import Quantities, assert_as_near, assert_within_roundings
from opswap import functional as F
from pool_cases import gradient, random_case
from step import saved_by

OURS = {2: F.avg_pool2d, 3: F.avg_pool3d}
TORCH = {2: T.avg_pool2d, 3: T.avg_pool3d}
EXACT = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)


def options() -> tuple[bool, int | None]:
    return random.random() < 0.5, random.choice((None, None, 3, -2))


@pytest.mark.parametrize("dtype", [*EXACT, torch.int64], ids=str)
@pytest.mark.parametrize("spatial", [2, 3])
def test_random_windows_equal_torch(spatial: int, dtype: torch.dtype, tier: str) -> None:
    ours, theirs = OURS[spatial], TORCH[spatial]
    for layout in LAYOUTS:
        for _ in range(4):
            case = random_case(spatial, dilated=False)
            arguments = (*case.window[:3], case.ceil_mode, *options())
            x = LAYOUTS[layout]((torch.randn(case.size) * 9).to(dtype))
            try:
                want = theirs(x.contiguous(), *arguments)
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    ours(x, *arguments)
                continue
            assert same_bits(ours(x, *arguments), want), (layout, case, arguments)
            if dtype.is_floating_point:
                grad = torch.randn(want.shape, dtype=dtype)
                want = gradient(theirs, x.contiguous(), grad, *arguments)
                assert same_bits(gradient(ours, x, grad, *arguments), want), (layout, case, arguments)


@pytest.mark.parametrize(
    "window",
    [(9, 1, 4), (13, 2, 6), (14,), (33, 1, 16), ((40, 3), 1, (20, 1)), ((3, 70), (1, 9), (0, 35))],
    ids=str,
)
def test_large_windows_equal_torch(window: tuple[Any, ...], tier: str) -> None:
    for channels, dtype in ((17, torch.float32), (40, torch.float32), (5, torch.float64)):
        x = (torch.randn(2, channels, 41, 36) * 9).to(dtype)
        last = x.contiguous(memory_format=torch.channels_last)
        want = T.avg_pool2d(x, *window)
        assert same_bits(F.avg_pool2d(last, *window), want), channels
        grad = torch.randn_like(want)
        want = gradient(T.avg_pool2d, x, grad, *window)
        assert same_bits(gradient(F.avg_pool2d, last, grad, *window), want), channels


@pytest.mark.parametrize("window", [(2,), (5,), ((4, 10), (4, 2)), (3, 1, 1)], ids=str)
def test_large_batches_equal_their_images(window: tuple[Any, ...]) -> None:
    """From 1 to 42 MB on, by the CPU, the next window is prefetched."""
    x = torch.randn(61, 62, 52, 60).contiguous(memory_format=torch.channels_last)
    assert same_bits(
        F.avg_pool2d(x, *window), torch.cat([F.avg_pool2d(image, *window) for image in x.split(1)])
    )


def test_large_windows_over_volumes_equal_torch(tier: str) -> None:
    window = (9, 1, 4)  # a position of the input belongs to windows of 81 rows
    for channels in (17, 40):
        x = torch.randn(1, channels, 10, 11, 12)
        last = x.contiguous(memory_format=torch.channels_last_3d)
        want = T.avg_pool3d(x, *window)
        assert same_bits(F.avg_pool3d(last, *window), want)
        grad = torch.randn_like(want)
        want = gradient(T.avg_pool3d, x, grad, *window)
        assert same_bits(gradient(F.avg_pool3d, last, grad, *window), want)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_half_precision_is_no_less_exact_than_torch(
    dtype: torch.dtype, memory_format: torch.memory_format, tier: str
) -> None:
    for window in ((3, 2, 1), (5, 1, 2), (2,), ((4, 10), (4, 2)), (9, 1, 4), (14,)):

        def results(f: Callable[..., Tensor], x: Tensor, grad: Tensor, window: Any = window) -> Quantities:
            return {"output": f(x, *window), "gradient": gradient(f, x, grad, *window)}

        def draw(window: Any = window) -> tuple[Quantities, Quantities, Quantities]:
            x = torch.randn(2, 19, 14, 15).to(dtype).contiguous(memory_format=memory_format)
            grad = torch.randn_like(T.avg_pool2d(x, *window))
            wide = results(T.avg_pool2d, x.double(), grad.double())
            return wide, results(T.avg_pool2d, x, grad), results(F.avg_pool2d, x, grad)

        assert_as_near(draw, times=1, floor=0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_volumes_in_half_precision_are_rounded_once(dtype: torch.dtype, tier: str) -> None:
    x = torch.randn(2, 5, 6, 7, 8).to(dtype)
    got = F.avg_pool3d(x, 3, 2, 1)
    assert got.dtype == dtype and torch.equal(got, T.avg_pool3d(x.float(), 3, 2, 1).to(dtype))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "window", [((1, 3, 3), (2, 1, 2)), ((1, 2, 2), (3, 2, 2), (0, 1, 1)), ((2, 3, 3), 2)]
)
def test_images_read_as_volumes(window: tuple[object, ...], channels_last: bool) -> None:
    dense = torch.randn(3, 8, 9, 10)
    x = dense.contiguous(memory_format=torch.channels_last) if channels_last else dense
    want = T.avg_pool3d(dense, *window)
    got = F.avg_pool3d(x, *window)
    assert same_bits(got, want)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    assert got.is_contiguous(memory_format=memory_format)
    grad = torch.randn_like(want)
    assert same_bits(gradient(F.avg_pool3d, x, grad, *window), gradient(T.avg_pool3d, dense, grad, *window))


def test_volumes_keep_channels_last_3d() -> None:
    x = torch.randn(2, 4, 5, 6, 7).contiguous(memory_format=torch.channels_last_3d).requires_grad_()
    output = F.avg_pool3d(x, 2)
    assert output.is_contiguous(memory_format=torch.channels_last_3d)
    (grad,) = torch.autograd.grad(output.sum(), x)
    assert grad.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("spatial", [2, 3])
def test_unbatched(spatial: int) -> None:
    x = torch.randn((5, 6, 7, 8)[: spatial + 1])
    assert same_bits(OURS[spatial](x, 2, 1, 1), TORCH[spatial](x, 2, 1, 1))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_gradients_of_any_layout(layout: str) -> None:
    x = torch.randn(3, 8, 7, 9)
    grad = LAYOUTS[layout](torch.randn(3, 8, 4, 5))
    want = gradient(T.avg_pool2d, x, grad.contiguous(), 3, 2, 1)
    assert same_bits(gradient(F.avg_pool2d, x, grad, 3, 2, 1), want)


def test_nothing_is_saved_for_the_backward() -> None:
    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    assert not saved_by(lambda: F.avg_pool2d(x, 2))


@pytest.mark.parametrize("spatial", [2, 3])
def test_reference_equals_torch_and_the_kernels(spatial: int) -> None:
    operators = torch.ops.opswap
    for _ in range(12):
        case = random_case(spatial, dilated=False, batch=2)
        arguments = (*case.window[:3], case.ceil_mode, *options())
        x = torch.randn(case.size)
        try:
            want = TORCH[spatial](x, *arguments)
        except RuntimeError:
            continue
        step = random.randint(1, 3)
        kernel = operators.avg_pool(x, *arguments, step)
        backward = (torch.randn_like(kernel), x.shape, *arguments, step, torch.contiguous_format)
        grad = operators.avg_pool_backward(*backward)
        with opswap.force_reference():
            wide = x.double()
            truth, magnitude = (TORCH[spatial](t, *arguments) for t in (wide, wide.abs()))
            terms = TORCH[spatial](torch.ones_like(wide), *arguments[:-1], 1) + 1
            for result in (OURS[spatial](x, *arguments), want):
                assert_within_roundings(result, truth, magnitude.abs(), terms, (case, arguments))
            assert same_bits(operators.avg_pool(x, *arguments, step), kernel), (case, arguments)
            assert same_bits(operators.avg_pool_backward(*backward), grad), (case, arguments)
