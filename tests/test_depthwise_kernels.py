# SPDX-License-Identifier: MIT
"""The kernels of depthwise convolutions: as near to float64 as their sums allow, for every window."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from depthwise_cases import FLOATS, HALVES, LAST, all_results, assert_close, kernel_results, make, stock
from opswap import _core
from threads import same_on_any_threads

SQUARES = [(k, k) for k in (3, 5, 7, 9)]
OBLONG = [(tall, wide) for tall in (1, 3, 5, 7, 9) for wide in (1, 3, 5, 7, 9) if tall != wide]


def geometries(
    count: int, seed: int, windows: Sequence[tuple[int, int]]
) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Arguments of `make` and of the window: channels around the widths of vectors, maps from one pixel, every stride,
    padding and dilation."""
    generator = random.Random(seed)
    found: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = []
    while len(found) < count:
        taps, stride = generator.choice(windows), generator.choice((1, 2))
        dilation = generator.choice((1, 1, 2, 3, 5)) if stride == 1 else 1
        extents = [(k - 1) * dilation + 1 for k in taps]
        c, *sides = generator.randint(1, 40), generator.randint(1, 12), generator.randint(1, 12)
        paddings = tuple(generator.choice((generator.randint(0, e), e // 2)) for e in extents)
        if all(n + 2 * p >= e for n, p, e in zip(sides, paddings, extents, strict=True)):
            found.append(((generator.randint(1, 3), c, *sides, taps), (stride, paddings, dilation)))
    return found


@pytest.mark.parametrize("dtype", [*FLOATS, *HALVES])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("windows", [SQUARES, OBLONG], ids=["squares", "oblong"])
def test_small_maps(tier: str, dtype: torch.dtype, seed: int, windows: list[tuple[int, int]]) -> None:
    for size, window in geometries(60, seed, windows):
        assert_close(make(*size, dtype), *window)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("windows", [SQUARES, OBLONG], ids=["squares", "oblong"])
def test_weights_in_float32(tier: str, dtype: torch.dtype, windows: list[tuple[int, int]]) -> None:
    """Beside images of 16 bits, as under autocast."""
    for size, window in geometries(60, 5, windows):
        x, w, b = make(*size)
        assert_close((x.to(dtype), w, b), *window)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.bfloat16])
@pytest.mark.parametrize("k", [3, 5, 7, 9])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (1, 3)])
def test_every_width(tier: str, dtype: torch.dtype, k: int, stride: int, dilation: int) -> None:
    """Strips of every length at both margins, and channels that end within a vector."""
    window = (stride, k // 2 * dilation, dilation)
    for width in range(1, 32):
        assert_close(make(2, 11, 5, width, k, dtype), *window)
    for channels in range(1, 41):
        assert_close(make(1, channels, 4, 9, k, dtype), *window)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float16])
@pytest.mark.parametrize("taps", [(1, 3), (3, 1), (1, 9), (9, 1), (5, 1), (3, 7), (7, 3)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2)])
def test_every_height_and_width(
    tier: str, dtype: torch.dtype, taps: tuple[int, int], stride: int, dilation: int
) -> None:
    """Strips along rows and down columns, of every length at both margins."""
    window = (stride, tuple(k // 2 * dilation for k in taps), dilation)
    for side in range(1, 24):
        assert_close(make(2, 11, side, 3, taps, dtype), *window)
        assert_close(make(2, 11, 3, side, taps, dtype), *window)
    for channels in range(1, 41, 3):
        assert_close(make(1, channels, 9, 4, taps, dtype), *window)


@hypothesis_seed(19)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    taps=st.sampled_from((*SQUARES, *OBLONG)),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 6),
    padding=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    dtype=st.sampled_from((*FLOATS, *HALVES)),
)
def test_any_window(
    tier: str,
    size: tuple[int, ...],
    taps: tuple[int, int],
    stride: int,
    dilation: int,
    padding: tuple[int, int],
    dtype: torch.dtype,
) -> None:
    dilation = 1 if stride == 2 else dilation
    assume(all(n + 2 * p > (k - 1) * dilation for n, p, k in zip(size[2:], padding, taps, strict=True)))
    assert_close(make(*size, taps, dtype), stride, padding, dilation)


@pytest.mark.parametrize("size", [(3, 24, 40, 41), (2, 58, 28, 28), (19, 16, 5, 6), (2, 8, 1200, 2)])
@pytest.mark.parametrize(("k", "stride", "dilation"), [(3, 1, 1), (3, 2, 1), (7, 1, 1), (7, 2, 1), (5, 1, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_larger_maps(
    tier: str, size: tuple[int, ...], k: int, stride: int, dilation: int, dtype: torch.dtype
) -> None:
    """Several chunks an image, several images a chunk, and a last chunk with fewer images."""
    assert_close(make(*size, k, dtype), stride, k // 2 * dilation, dilation)


@pytest.mark.parametrize("size", [(3, 24, 40, 41), (2, 58, 28, 28), (19, 16, 5, 6), (2, 8, 1200, 2)])
@pytest.mark.parametrize("taps", [(1, 5), (5, 1), (1, 9), (9, 1)])
def test_larger_maps_and_a_row_or_a_column(tier: str, size: tuple[int, ...], taps: tuple[int, int]) -> None:
    assert_close(make(*size, taps), 1, (taps[0] // 2, taps[1] // 2), 1)


@pytest.mark.parametrize("size", [(3, 24, 40, 41), (19, 16, 5, 6), (16, 58, 28, 28)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("taps", [(3, 3), (7, 7), (1, 5), (5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_threads(
    tier: str, size: tuple[int, ...], taps: tuple[int, int], stride: int, dilation: int, dtype: torch.dtype
) -> None:
    window = (stride, tuple(k // 2 * dilation for k in taps), dilation)
    tensors = [t.detach() for t in make(*size, taps)]
    grad = torch.randn(stock(*tensors, *window).shape).contiguous(memory_format=LAST).to(dtype)
    tensors = [t.to(dtype) for t in tensors]
    same_on_any_threads(lambda: kernel_results(tensors, grad, *window))


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", [*FLOATS, *HALVES])
def test_non_finite_values_stay_where_they_belong(
    tier: str, value: float, stride: int, dtype: torch.dtype
) -> None:
    """In the input and in the gradient; channels that share a vector are not touched."""
    for at in range(2):
        x, w, b = (t.detach().to(dtype) for t in make(1, 11, 6, 7))
        shape = stock(*(t.float() for t in (x, w, b)), stride, 1).shape
        grad = torch.randn(shape).contiguous(memory_format=LAST).to(dtype)
        (x, grad)[at][0, 8, 2, 2] = value
        exact = all_results([t.double() for t in (x, w, b)], grad.double(), stride, 1)
        for ours, e in zip(kernel_results((x, w, b), grad, stride, 1), exact, strict=True):
            torch.testing.assert_close(ours, e.to(dtype), equal_nan=True)


def test_padding_is_no_zero_times_an_infinite_tap(tier: str) -> None:
    x, w, b = (t.detach() for t in make(1, 11, 6, 7))
    finite = kernel_results((x, w, b), x, 1, 1)[:2]
    w[8, 0, 0, 0] = float("inf")
    output, grad_input = kernel_results((x, w, b), x, 1, 1)[:2]
    assert output[0, 8, 1:, 1:].isinf().all() and grad_input[0, 8, :-1, :-1].isinf().all()
    for ours, e in zip((output, grad_input), finite, strict=True):
        assert torch.equal(torch.where(ours.isinf(), e, ours), e)


def test_every_variant_was_run() -> None:
    for dtype in (*FLOATS, *HALVES):
        assert_close(make(1, 9, 4, 5, 3, dtype), 1, 1)
    assert all(_core.depthwise_variants().values())
