# SPDX-License-Identifier: MIT
"""A tensor over the mean of its squares: the function against float64 and torch, and where swap finds it."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
from counted import counts, kernels
from nearness import assert_model_as_near
from opswap import functional as F
from step import outputs_and_gradients
from threads import same_on_any_threads

LAST = torch.channels_last
SIZES = ((7,), (5, 3), (3, 64, 4, 18), (1, 68, 4, 18), (2, 3, 4, 5, 6), (1, 1, 1, 1), (2, 70000))
# Relative to the largest value.
NEAR = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def stock(x: Tensor) -> Tensor:
    return x / x.pow(2).mean()


def step(function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    y = function(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, grad)[0]


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients(size: tuple[int, ...], dtype: torch.dtype, tier: str) -> None:
    formats = (torch.contiguous_format, LAST) if len(size) == 4 else (torch.contiguous_format,)
    for memory_format in formats:
        x, grad = (torch.randn(size).to(dtype).contiguous(memory_format=memory_format) for _ in range(2))
        opswap.reset_stats()
        got = step(F.over_mean_square, x, grad)
        assert counts() == ({"over_mean_square": 1, "over_mean_square_backward": 1}, {})
        for a, b in zip(got, step(stock, x.double(), grad.double()), strict=True):
            assert a.dtype == dtype and a.stride() == x.stride()
            torch.testing.assert_close(
                a.double(), b, rtol=0, atol=NEAR[dtype] * (b.abs().max().item() + 1e-3)
            )


def test_threads() -> None:
    x, grad = torch.randn(5, 64, 40, 40), torch.randn(5, 64, 40, 40)
    same_on_any_threads(lambda: step(F.over_mean_square, x, grad))


OTHERS: dict[str, Callable[[], Tensor]] = {
    "float64": lambda: torch.randn(2, 3, dtype=torch.float64),
    "a slice": lambda: torch.randn(4, 6)[:, ::2],
    "expanded": lambda: torch.randn(1, 3).expand(4, 3),
    "no element": lambda: torch.randn(0, 3),
    "a number": lambda: torch.randn(()),
    "transposed": lambda: torch.randn(3, 4).t(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_run_as_torch(name: str) -> None:
    x = OTHERS[name]()
    grad = torch.randn(x.shape, dtype=x.dtype)
    opswap.reset_stats()
    for a, b in zip(step(F.over_mean_square, x, grad), step(stock, x, grad), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
        assert a.stride() == b.stride()
    assert kernels() == 0


def test_gradients_of_other_strides() -> None:
    x = torch.randn(2, 8, 4, 5)
    made = torch.randn(2, 8, 4, 5, 2)
    for grad in (made[..., 0], made[..., 1].contiguous(memory_format=LAST), torch.ones(()).expand_as(x)):
        for a, b in zip(step(F.over_mean_square, x, grad), step(stock, x, grad), strict=True):
            torch.testing.assert_close(a, b)


def test_zeros_infinities_and_not_a_number() -> None:
    for values in ((0.0, 0.0), (float("inf"), 1.0), (float("inf"), -float("inf")), (float("nan"), 1.0)):
        x = torch.full((2, 9), values[1] and 1.0)
        x[0, 3], x[1, 4] = values
        torch.testing.assert_close(F.over_mean_square(x), stock(x), equal_nan=True)


def test_range() -> None:
    """Squares beyond the range of float32 are infinite or zero, as torch's."""
    for scale in (1e-25, 3e-20, 1e-19, 1e-10, 1e10, 1e19, 1e25):
        x = torch.randn(3, 50) * scale
        torch.testing.assert_close(F.over_mean_square(x), stock(x), rtol=1e-5, atol=0)


@pytest.mark.parametrize("first", [True, False])
def test_checkpoint_in_another_way(first: bool) -> None:
    """The kernel runs in one of both forwards alone."""
    x = torch.randn(3, 5, requires_grad=True)
    calls = iter((first, not first))

    def function(y: Tensor) -> Tensor:
        with opswap.disabled() if next(calls) else nullcontext():
            return F.over_mean_square(y)

    checkpoint(function, x, use_reentrant=False).square().sum().backward()
    (want,) = torch.autograd.grad(stock(x).square().sum(), x)
    torch.testing.assert_close(x.grad, want)


def test_errors() -> None:
    with pytest.raises(RuntimeError):
        F.over_mean_square(torch.ones(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        F.over_mean_square([1.0])  # type: ignore[arg-type]


class Net(nn.Module):
    def __init__(self, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.body = nn.Conv2d(3, 8, 3), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.conv(x))


def published(f: Tensor) -> Tensor:
    """As most ports of LPRNet have it."""
    f_pow = torch.pow(f, 2)
    f_mean = torch.mean(f_pow)
    return torch.div(f, f_mean)


FOUND: dict[str, Callable[[Tensor], Tensor]] = {
    "published": published,
    "x.pow(2).mean()": stock,
    "x ** 2": lambda x: x / (x**2).mean(),
    "torch.square": lambda x: x.div(torch.mean(torch.square(x))),
    "x.square()": lambda x: torch.true_divide(x, x.square().mean()),
    "x * x": lambda x: operator.truediv(x, (x * x).mean()),
    "torch.mul": lambda x: torch.divide(x, torch.mul(x, x).mean()),
    "read again": lambda x: stock(x) + x,
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    model = Net(FOUND[name])
    swapped = opswap.swap(copy.deepcopy(model))
    assert "over_mean_square" in [s.rule for s in opswap.report(swapped).swapped]
    opswap.reset_stats()
    x = torch.randn(2, 3, 8, 8)
    got, want = outputs_and_gradients(swapped, x), outputs_and_gradients(model, x)
    assert kernels("over_mean_square") == kernels("over_mean_square_backward") == 1
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def _written_between(x: Tensor) -> Tensor:
    mean = x.pow(2).mean()
    x.add_(1)
    return x / mean


def _kept(x: Tensor) -> Tensor:
    square = x.pow(2)
    return x / square.mean() + square


APART: dict[str, Callable[[Tensor], Tensor]] = {
    "it is written to in between": _written_between,
    "the square is read elsewhere": _kept,
    "a mean per channel": lambda x: x / x.pow(2).mean((2, 3), keepdim=True),
    "the mean of another tensor": lambda x: x / (x + 1).pow(2).mean(),
    "the third power": lambda x: x / x.pow(3).mean(),
    "rounded": lambda x: torch.div(x, x.pow(2).mean(), rounding_mode="floor"),
    "another dtype": lambda x: x / x.pow(2).mean(dtype=torch.float64),
    "a product": lambda x: x * x.pow(2).mean(),
    "the other way round": lambda x: x.pow(2).mean() / x,
}


@pytest.mark.parametrize("name", APART)
def test_left_alone(name: str) -> None:
    model = Net(APART[name])
    swapped = opswap.swap(copy.deepcopy(model))
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        opswap.reset_stats()
        torch.testing.assert_close(swapped(x), model(x))
    assert kernels("over_mean_square") == 0


def test_lprnet() -> None:
    stock_model = opswap.models.lprnet()
    model = opswap.swap(copy.deepcopy(stock_model))
    assert [s.rule for s in opswap.report(model).swapped].count("over_mean_square") >= 1
    opswap.reset_stats()
    model(torch.randn(2, 3, 24, 94)).sum().backward()
    assert kernels("over_mean_square") == kernels("over_mean_square_backward") == 4
    exact = opswap.swap(copy.deepcopy(stock_model), exact=True)
    assert "over_mean_square" not in [s.rule for s in opswap.report(exact).swapped]


def test_as_near(one_thread: Any) -> None:
    model = Net(published)
    assert_model_as_near(opswap.swap(copy.deepcopy(model)), model, lambda: (torch.randn(2, 3, 8, 8),))
