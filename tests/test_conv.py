# SPDX-License-Identifier: MIT
"""The kernels of dense convolutions and their gradients: torch's values and layouts, the same bits on any threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

from conv_cases import FLOATS, LAST, image
from inputs import same_bits
from nearness import assert_within_roundings
from opswap import _core
from threads import same_on_any_threads

CHANNELS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 63, 64, 65)


def torchs(grad: Tensor, x: Tensor, w: Tensor, *window: Any) -> tuple[Tensor, Tensor, Tensor]:
    """torch's gradients of input, weight and bias."""
    options = ([v, v] if isinstance(v, int) else list(v) for v in window)
    return torch.ops.aten.convolution_backward(
        grad, x, w, [w.shape[0]], *options, False, [0, 0], 1, [True, True, True]
    )


def kernels(grad: Tensor, x: Tensor, w: Tensor, *window: Any) -> tuple[Tensor, Tensor, Tensor]:
    made = _core.plain_conv_backward(grad, x, w, *window, True, True, True)
    assert made is not NotImplemented
    return made


# The values of a sum of products, of their magnitudes and of their number.
CHANGES: tuple[Callable[[Tensor], Tensor], ...] = (lambda t: t, torch.abs, torch.ones_like)


def assert_output_close(x: Tensor, w: Tensor, *window: Any) -> None:
    """Outputs against float64, with and without bias."""
    for bias in (None, torch.randn(w.shape[0], dtype=x.dtype)):
        found = _core.plain_conv(x, w, bias, *window)
        if found is NotImplemented:  # torch's is in another format
            assert x.shape[1] == 1 or x.shape[2:] == (1, 1)
            continue
        expected = [
            T.conv2d(*(None if t is None else change(t.double()) for t in (x, w, bias)), *window)
            for change in CHANGES
        ]
        assert found is not NotImplemented and found.dtype == x.dtype
        assert found.is_contiguous(memory_format=LAST)
        assert_within_roundings(found, *expected, "output")


def assert_close(x: Tensor, w: Tensor, *window: Any, slices: bool = False) -> None:
    """Outputs and gradients against float64: as near as sums of that many products are."""
    assert_output_close(x, w, *window)
    shape = T.conv2d(x, w, None, *window).shape
    grad = image(*shape, dtype=x.dtype, slices=slices)
    truth, magnitudes, terms = (
        torchs(*(change(t.double()) for t in (grad, x, w)), *window) for change in CHANGES
    )
    made = kernels(grad, x, w, *window)
    assert torch.empty_like(w).stride() == made[1].stride()
    assert made[0].is_contiguous(memory_format=LAST)
    names = ("input", "weight", "bias")
    for name, found, *expected in zip(names, made, truth, magnitudes, terms, strict=True):
        assert found.dtype == x.dtype
        assert_within_roundings(found, *expected, name)
    for wanted in ((True, False, False), (False, True, False), (True, True, False), (False, True, True)):
        some = _core.plain_conv_backward(grad, x, w, *window, *wanted)
        for want, part, whole in zip(wanted, some, made, strict=True):
            assert same_bits(part, whole) if want else part is None
    assert _core.plain_conv_backward(grad, x, w, *window, False, False, True) is NotImplemented


def geometries(count: int, seed: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]]:
    """Sizes of input and weight and a window: channels around the widths of vectors, maps from one pixel on."""
    draw = random.Random(seed)
    while count:
        taps = [draw.choice((1, 1, 2, 3, 3, 4, 5, 13)) for _ in range(2)]
        size = [draw.randint(1, 14) for _ in range(2)]
        window = [[draw.randint(low, high) for _ in range(2)] for low, high in ((1, 3), (0, 4), (1, 2))]
        _, padding, dilation = window
        if any(s + 2 * p <= d * (t - 1) for s, p, d, t in zip(size, padding, dilation, taps, strict=True)):
            continue
        channels, outputs = draw.choice(CHANNELS), draw.choice(CHANNELS)
        yield (draw.randint(1, 9), channels, *size), (outputs, channels, *taps), tuple(map(tuple, window))
        count -= 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", range(4))
def test_every_geometry(tier: str, dtype: torch.dtype, seed: int) -> None:
    for i, (size, weight, window) in enumerate(geometries(24, seed)):
        memory_format = LAST if i % 3 else torch.contiguous_format
        w = torch.randn(weight, dtype=dtype).contiguous(memory_format=memory_format)
        assert_close(image(*size, dtype=dtype, slices=i % 2 == 0), w, *window, slices=i % 4 < 2)


@pytest.mark.parametrize(
    ("size", "weight", "window"),
    [
        ((3, 24, 40, 41), (17, 24, 3, 3), (1, 1, 1)),  # blocks that end before an image does
        ((19, 16, 7, 7), (33, 16, 3, 3), (1, 1, 1)),
        ((2, 65, 3, 700), (9, 65, 1, 3), (1, (0, 1), 1)),  # blocks that are narrower than an image
        ((40, 33, 8, 9), (70, 33, 1, 1), (1, 0, 1)),  # images that are joined
        ((4, 3, 37, 50), (64, 3, 7, 7), (2, 3, 1)),
        ((2, 64, 17, 19), (24, 64, 13, 1), (1, (6, 0), 1)),
        ((2, 64, 9, 9), (512, 64, 3, 3), (2, 1, 1)),  # one part
    ],
)
@pytest.mark.parametrize("slices", [False, True])
def test_larger_maps(
    tier: str, size: tuple[int, ...], weight: tuple[int, ...], window: Any, slices: bool
) -> None:
    assert_close(image(*size, slices=slices), torch.randn(weight).contiguous(memory_format=LAST), *window)


@pytest.mark.parametrize(
    ("size", "weight", "window"),
    [
        ((9, 24, 20, 21), (40, 24, 3, 3), (1, 1, 1)),
        ((9, 3, 40, 41), (64, 3, 3, 3), (2, 1, 1)),
        ((16, 64, 14, 14), (96, 64, 1, 1), (1, 0, 1)),
        ((2, 128, 9, 9), (300, 128, 3, 3), (1, 1, 1)),  # one part, whose outputs the threads share
    ],
)
def test_bits_do_not_depend_on_threads(
    tier: str, size: tuple[int, ...], weight: tuple[int, ...], window: Any
) -> None:
    x, w = image(*size), torch.randn(weight).contiguous(memory_format=LAST)
    grad = image(*T.conv2d(x, w, None, *window).shape)
    same_on_any_threads(lambda: (_core.plain_conv(x, w, None, *window), *kernels(grad, x, w, *window)))


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("channels", [(11, 18), (18, 11), (3, 40), (70, 20)])
def test_non_finite_values_stay_where_they_belong(tier: str, value: float, channels: tuple[int, int]) -> None:
    """In the input and in the gradient: other channels are not touched, and padding is no zero times infinity."""
    c, o = channels
    for at in range(2):
        x, w = image(1, c, 6, 7), torch.randn(o, c, 3, 3).contiguous(memory_format=LAST)
        grad = image(1, o, 6, 7)
        finite = kernels(grad, x, w, 1, 1, 1)[1:]
        (x, grad)[at][0, 2, 0, 0] = value
        found = kernels(grad, x, w, 1, 1, 1)[1:]
        reached = torch.zeros(o, c, 3, 3, dtype=torch.bool)
        reached.movedim(1 - at, 0)[2, :, 1:, 1:] = True  # of the first pixel the taps to the right and below
        if at == 0:
            reached.zero_()[:, 2, :2, :2] = True
        assert torch.equal(~found[0].isfinite(), reached)
        assert torch.equal(found[0][~reached], finite[0][~reached])
        assert (~found[1].isfinite()).nonzero().flatten().tolist() == ([2] if at else [])


def test_every_variant_was_run() -> None:
    for dtype in FLOATS:
        assert_close(image(2, 9, 4, 5, dtype=dtype), torch.randn(4, 9, 3, 3, dtype=dtype), 1, 1, 1)
    assert all(_core.conv_variants().values())


@pytest.mark.parametrize(
    "change",
    [
        lambda g, x, w: (g, x, w.half(), 1, 1, 1),
        lambda g, x, w: (g.double(), x, w, 1, 1, 1),
        lambda g, x, w: (g, x.double(), w, 1, 1, 1),
        lambda g, x, w: (g.half(), x.half(), w.half(), 1, 1, 1),
        lambda g, x, w: (g.contiguous(), x, w, 1, 1, 1),
        lambda g, x, w: (g, x.contiguous(), w, 1, 1, 1),
        lambda g, x, w: (g, x, w.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), 1, 1, 1),
        lambda g, x, w: (g, x[0], w, 1, 1, 1),
        lambda g, x, w: (g[:1], x, w, 1, 1, 1),
        lambda g, x, w: (g[:, :5], x, w, 1, 1, 1),
        lambda g, x, w: (g[:, :, 1:], x, w, 1, 1, 1),
        lambda g, x, w: (g[:, :, :, 1:], x, w, 1, 1, 1),
        lambda g, x, w: (g, x[:, 1:], w, 1, 1, 1),
        lambda g, x, w: (g[:0], x[:0], w, 1, 1, 1),
        lambda g, x, w: (g, x, w[:0], 1, 1, 1),
        lambda g, x, w: (g, x, w, 2, 1, 1),
        lambda g, x, w: (g, x, w, 0, 1, 1),
        lambda g, x, w: (g, x, w, 1, -1, 1),
        lambda g, x, w: (g, x, w, 1, 1, 0),
        lambda g, x, w: (g, x, w, 1, 2**31, 1),
        lambda g, x, w: (g, x, w, 1, 1, 2**31 - 1),
        lambda g, x, w: (g, x, w, True, 1, 1),
        lambda g, x, w: (g, x, w, 1.0, 1, 1),
        lambda g, x, w: (g, x, w, (1, 1, 1), 1, 1),
        lambda g, x, w: (g, x, w, (), 1, 1),
        lambda g, x, w: (g, x, w, 1, "same", 1),
        lambda g, x, w: (None, x, w, 1, 1, 1),
        lambda g, x, w: (g, x, [w], 1, 1, 1),
        lambda g, x, w: (g.to_sparse(), x, w, 1, 1, 1),
        lambda g, x, w: (g, x.to("meta"), w, 1, 1, 1),
    ],
)
def test_the_extension_checks_for_itself(change: Callable[..., tuple[Any, ...]]) -> None:
    g, x, w = image(2, 12, 6, 7), image(2, 9, 6, 7), torch.randn(12, 9, 3, 3)
    assert _core.plain_conv_backward(*change(g, x, w), True, True, True) is NotImplemented
    assert _core.plain_conv_backward(g, x, w, 1, 1, 1, True) is NotImplemented
    kernels(g, x, w, 1, 1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: (x, w.half(), b, 1, 1, 1),
        lambda x, w, b: (x.double(), w, b, 1, 1, 1),
        lambda x, w, b: (x, w, b.double(), 1, 1, 1),
        lambda x, w, b: (x, w, b[:5], 1, 1, 1),
        lambda x, w, b: (x, w, b[:, None], 1, 1, 1),
        lambda x, w, b: (x, w, torch.randn(24)[::2], 1, 1, 1),
        lambda x, w, b: (x.contiguous(), w, b, 1, 1, 1),
        lambda x, w, b: (x[0], w, b, 1, 1, 1),
        lambda x, w, b: (x[:0], w, b, 1, 1, 1),
        lambda x, w, b: (x[:, 1:], w, b, 1, 1, 1),
        lambda x, w, b: (x[:, :, :1], w, b, 1, 0, 1),
        lambda x, w, b: (x, w[:0], b, 1, 1, 1),
        lambda x, w, b: (x, w, b, 0, 1, 1),
        lambda x, w, b: (x, w, b, 1, -1, 1),
        lambda x, w, b: (x, w, b, 1, 1, 0),
        lambda x, w, b: (x, w, b, 1, "same", 1),
        lambda x, w, b: (x, w, [1.0], 1, 1, 1),
        lambda x, w, b: (None, w, b, 1, 1, 1),
        lambda x, w, b: (x, w, b, 1, 1),
    ],
)
def test_the_forward_checks_for_itself(change: Callable[..., tuple[Any, ...]]) -> None:
    x, w, b = image(2, 9, 6, 7), torch.randn(12, 9, 3, 3), torch.randn(12)
    assert _core.plain_conv(*change(x, w, b)) is NotImplemented
    assert _core.plain_conv(x, w, b, 1, 1, 1) is not NotImplemented


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("channels", [(3, 40), (18, 11)])
def test_padding_has_no_terms(tier: str, value: float, channels: tuple[int, int]) -> None:
    """An infinite weight reaches the pixels of its tap alone: what lies outside of the image is no zero."""
    c, o = channels
    x, w = image(1, c, 5, 6), torch.randn(o, c, 3, 3)
    w[1, 2, 0, 2] = value
    reached = torch.zeros(1, o, 5, 6, dtype=torch.bool)
    reached[0, 1, 1:, :-1] = True
    assert torch.equal(~_core.plain_conv(x, w, None, 1, 1, 1).isfinite(), reached)
    of_input = kernels(image(1, o, 5, 6), x, w, 1, 1, 1)[0]
    reached = torch.zeros(1, c, 5, 6, dtype=torch.bool)
    reached[0, 2, :-1, 1:] = True
    assert torch.equal(~of_input.isfinite(), reached)


def test_too_many_taps() -> None:
    for taps, taken in (((13, 13), True), ((14, 1), False), ((1, 14), False)):
        x, w = image(1, 16, 14, 14), torch.randn(16, 16, *taps)
        grad = image(*T.conv2d(x, w).shape)
        wanted = (True, True, False)
        assert (_core.plain_conv_backward(grad, x, w, 1, 0, 1, *wanted) is not NotImplemented) == taken
        assert (_core.plain_conv(x, w, None, 1, 0, 1) is not NotImplemented) == taken
