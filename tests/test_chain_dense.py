# SPDX-License-Identifier: MIT
"""Dense convolutions in chains of evaluation: any window, with a bias, with or without a normalisation."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as torch_functional
from torch import Tensor

from chain_cases import ACTIVATIONS
from opswap import _core
from threads import same_on_any_threads

LAST = torch.channels_last


class Window(NamedTuple):
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    activation: str | None = "relu"
    norm: bool = True
    bias: bool = False
    groups: int = 1


CASES: dict[str, tuple[tuple[int, ...], tuple[Window, ...]]] = {
    "3x3 of 3": ((2, 3, 24, 94), (Window(64, (3, 3)),)),
    "stem": ((1, 3, 33, 47), (Window(24, (3, 3), (2, 2), (1, 1)),)),
    "7x7": ((1, 3, 30, 31), (Window(32, (7, 7), (2, 2), (3, 3), "hardswish"),)),
    "bottleneck": (
        (2, 64, 10, 22),
        (
            Window(32, (1, 1), norm=False, bias=True),
            Window(32, (3, 1), padding=(1, 0), norm=False, bias=True),
            Window(32, (1, 3), padding=(0, 1), norm=False, bias=True),
            Window(128, (1, 1), activation=None, norm=False, bias=True),
        ),
    ),
    "1x4": ((3, 64, 4, 21), (Window(61, (1, 4), bias=True, activation="relu6"),)),
    "13x1": ((2, 70, 16, 18), (Window(68, (13, 1), bias=True),)),
    "strided 1x1": ((2, 17, 9, 11), (Window(33, (1, 1), (2, 3)),)),
    "two channels": ((2, 2, 12, 9), (Window(16, (3, 3), padding=(1, 1), activation="hardtanh(-1.0, 2.0)"),)),
    "depthwise with bias": (
        (2, 24, 13, 12),
        (Window(24, (5, 5), (2, 2), (2, 2), bias=True, groups=24), Window(40, (1, 1), bias=True)),
    ),
    "window of the image": ((2, 9, 5, 6), (Window(19, (5, 6), activation=None),)),
    "window that is wider": ((2, 9, 2, 3), (Window(19, (5, 4), padding=(4, 3)),)),
    "row of a window longer than a sum": ((1, 64, 9, 21), (Window(61, (1, 5), padding=(0, 2), bias=True),)),
    "such rows, several": ((2, 100, 7, 9), (Window(40, (3, 3), (1, 2), (1, 1), "hardswish"),)),
    "such rows, no multiple": ((1, 131, 6, 12), (Window(37, (2, 4), norm=False, bias=True),)),
    "even window": ((2, 31, 8, 8), (Window(47, (2, 4), (2, 1), (1, 2), None, norm=False, bias=True),)),
}


def weights(channels: int, w: Window) -> list[Tensor | None]:
    """weight, norm_weight, norm_bias, running_mean, running_var, bias."""
    size = (w.outputs, channels // w.groups, *w.kernel)
    weight = torch.randn(size) / torch.Size(size[1:]).numel() ** 0.5
    norm = (torch.rand, torch.randn, torch.randn, torch.rand) if w.norm else ()
    vectors: list[Tensor | None] = [draw(w.outputs) + (0.5 if draw is torch.rand else 0) for draw in norm]
    return [weight, *(vectors or [None] * 4), torch.randn(w.outputs) if w.bias else None]


def made(size: tuple[int, ...], windows: tuple[Window, ...]) -> tuple[Any, tuple[Tensor | None, ...]]:
    """(options, tensors) as the kernels take them."""
    tensors: list[Tensor | None] = [torch.randn(size).contiguous(memory_format=LAST)]
    channels = size[1]
    for w in windows:
        tensors += weights(channels, w)
        channels = w.outputs
    return tuple((*w.stride, *w.padding, w.groups, 1e-3, w.activation) for w in windows), tuple(tensors)


def reference(tensors: tuple[Tensor | None, ...], windows: tuple[Window, ...], dtype: torch.dtype) -> Tensor:
    """torch's operators, one by one."""
    x, *rest = (None if t is None else t.to(dtype) for t in tensors)
    assert x is not None
    for i, w in enumerate(windows):
        weight, scale, shift, mean, var, bias = rest[6 * i : 6 * (i + 1)]
        x = torch_functional.conv2d(x, weight, bias, w.stride, w.padding, 1, w.groups)
        if w.norm:
            x = torch_functional.batch_norm(x, mean, var, scale, shift, False, 0.0, 1e-3)
        x = ACTIVATIONS[w.activation](x)
    return x


@pytest.mark.parametrize("name", CASES)
def test_as_near_to_float64_as_torch(name: str, tier: str) -> None:
    """Of five inputs, one at least is as near as torch's, but for a factor of 4."""
    size, windows = CASES[name]
    ratios = []
    for _ in range(5):
        options, tensors = made(size, windows)
        exact = reference(tensors, windows, torch.float64)
        theirs = (reference(tensors, windows, torch.float32) - exact).abs().max()
        output, _ = _core.plain_chain_folded(options, tensors, None)
        assert output.shape == exact.shape and output.is_contiguous(memory_format=LAST)
        ratios.append(float((output - exact).abs().max() / theirs))
        if ratios[-1] <= 4:
            break
    assert min(ratios) <= 4, ratios


@pytest.mark.parametrize("name", CASES)
def test_same_bits_on_any_number_of_threads(name: str, tier: str) -> None:
    options, tensors = made(*CASES[name])
    same_on_any_threads(lambda: _core.plain_chain_folded(options, tensors, None)[:1], 7)


@pytest.mark.parametrize("number", range(12))
def test_any_window(number: int, tier: str) -> None:
    """Whole numbers, whose sums are exact in any order. 1 x 1 is no window: it needs more channels."""
    kernel = random.randint(1, 6), random.randint(2, 6)
    padding = random.randrange(kernel[0]), random.randrange(kernel[1])
    w = Window(
        random.randint(16, 40),
        kernel,
        (random.randint(1, 3), random.randint(1, 3)),
        padding,
        random.choice((None, "relu")),
        norm=False,
        bias=random.random() < 0.5,
    )
    size = [random.randint(1, 2), random.randint(2, 20)]  # torch takes images of one channel as contiguous
    size += [max(k - 2 * p, 2) + random.randrange(9) for k, p in zip(kernel, padding, strict=True)]
    options, tensors = made(tuple(size), (w,))
    whole = tuple(None if t is None else torch.randint_like(t, -4, 5) for t in tensors)
    output, folded = _core.plain_chain_folded(options, whole, None)
    assert torch.equal(output, reference(whole, (w,), torch.float32))
    assert torch.equal(_core.plain_chain_folded(options, whole, folded)[0], output)


def test_weights_of_any_memory_format(tier: str) -> None:
    options, tensors = made(*CASES["3x3 of 3"])
    expected, _ = _core.plain_chain_folded(options, tensors, None)
    weight = tensors[1]
    assert weight is not None
    turned = weight.transpose(0, 2).contiguous().transpose(0, 2)
    wide = torch.empty(64, 3, 3, 6)[..., ::2].copy_(weight)
    for other in (weight.contiguous(memory_format=LAST), turned, wide):
        given = (tensors[0], other, *tensors[2:])
        assert torch.equal(_core.plain_chain_folded(options, given, None)[0], expected)


def test_the_kernel_ran(tier: str) -> None:
    before = _core.chain_variants()["dense_folded"]
    for name in CASES:
        _core.plain_chain_folded(*made(*CASES[name]), None)
    every = [w for _, windows in CASES.values() for w in windows]
    dense = sum(w.groups == 1 and (w.kernel, w.stride) != ((1, 1), (1, 1)) for w in every)
    assert _core.chain_variants()["dense_folded"] - before == dense


def test_large_weights_are_folded_to_be_kept() -> None:
    options, tensors = made((1, 300, 7, 7), (Window(600, (1, 1)),))
    assert _core.plain_chain_folded(options, tensors, None) is NotImplemented
    output, folded = _core.plain_chain_folded(options, tensors, True)
    assert torch.equal(_core.plain_chain_folded(options, tensors, folded)[0], output)
    many, tensors = made((11, 300, 7, 7), (Window(600, (1, 1)),))
    assert _core.plain_chain_folded(many, tensors, None) is not NotImplemented


def test_large_windows_of_many_pixels_are_left_to_torch() -> None:
    window = Window(16, (3, 3), padding=(1, 1))
    for size, left in (((6, 64, 28, 28), True), ((1, 64, 28, 28), False), ((6, 48, 28, 28), False)):
        assert (_core.plain_chain_folded(*made(size, (window,)), True) is NotImplemented) == left
    tall = window._replace(kernel=(9, 1), padding=(4, 0))
    assert _core.plain_chain_folded(*made((6, 64, 28, 28), (tall,)), True) is not NotImplemented


def replaced(options: Any, at: int, value: Any) -> Any:
    return (tuple(value if i == at else o for i, o in enumerate(options[0])),)


def test_what_kernels_leave_to_torch() -> None:
    options, tensors = made(*CASES["3x3 of 3"])

    def declined(options: Any, tensors: Any) -> bool:
        return _core.plain_chain_folded(options, tensors, None) is NotImplemented

    assert not declined(options, tensors)
    for at, value in (
        (0, 0),
        (0, 2**40),
        (1, 1.0),
        (2, 3),
        (3, -1),
        (3, None),
        (4, 0),
        (4, 2),
        (4, 64),
        (5, 0.0),
        (5, "x"),
        (6, "gelu"),
    ):
        assert declined(replaced(options, at, value), tensors), (at, value)
    assert declined((options[0][:6],), tensors)
    assert declined((), tensors) and declined(None, tensors) and declined(options, tensors[:6])
    x = tensors[0]
    assert x is not None
    for wrong in (x.contiguous(), x.double(), x[:, :, :2], x[:0], x[:, :2], None):
        assert declined(options, (wrong, *tensors[1:]))
    for at, other in (
        (1, None),
        (1, torch.ones(64, 3, 3)),
        (1, torch.ones(9, 3, 3, 3)),
        (4, None),
        (6, torch.ones(9)),
    ):
        assert declined(options, (*tensors[:at], other, *tensors[at + 1 :])), at
    assert declined(*made((2, 8, 9, 9), (Window(16, (3, 1), groups=8),)))  # grouped otherwise
    assert declined(*made((1, 1025, 3, 3), (Window(16, (3, 3)),)))
    options, tensors = made((2, 16, 9, 9), (Window(16, (3, 3), padding=(1, 1), groups=16),))
    assert not declined(options, tensors)
    assert declined(replaced(options, 4, 1), tensors)  # torch would need an image of one channel


def test_infinite_values_reach_their_windows_only(tier: str) -> None:
    options, tensors = made((1, 5, 9, 9), (Window(16, (3, 3), activation=None, norm=False),))
    x = tensors[0]
    assert x is not None
    x[0, 2, 4, 4] = float("inf")
    output, _ = _core.plain_chain_folded(options, tensors, None)
    finite = output.isfinite().all(1)[0]
    assert not finite[2:5, 2:5].any() and finite.sum() == 49 - 9
