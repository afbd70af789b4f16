# SPDX-License-Identifier: MIT
"""Windows, sizes and comparisons that the tests of the pools share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from inputs import same_bits
from opswap import functional as F

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Case(NamedTuple):
    """An input size and the window to run over it, as the arguments of torch's max pools."""

    size: tuple[int, ...]
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool

    @property
    def window(self) -> tuple[Any, ...]:
        return tuple(self[1:])


def random_case(spatial: int, *, dilated: bool = True, batch: int | None = None) -> Case:
    """A small case; one in a few does not fit its input, so that errors are compared too."""

    def each(choice: Callable[[], int]) -> tuple[int, ...]:
        return tuple(choice() for _ in range(spatial))

    batch = random.randint(0, 2) if batch is None else batch
    channels = random.choice((1, 2, 3, 8, 17, 33))
    kernel = each(lambda: random.randint(1, 4))
    return Case(
        (batch, channels, *each(lambda: random.randint(3, 12))),
        kernel,
        each(lambda: random.randint(1, 3)),
        tuple(random.randint(0, k // 2) for k in kernel),
        each(lambda: random.choice((1, 1, 2)) if dilated else 1),
        random.random() < 0.5,
    )


def ties(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Few distinct values: most windows have several maxima, some of them NaN, infinite or a zero of either
    sign.
    """
    pool = torch.tensor([0.0, 1.0, 2.0, 3.0] * 6 + [-0.0] * 2, dtype=torch.float64)
    if dtype.is_floating_point:
        pool = torch.cat((pool, torch.tensor([float("nan"), float("inf"), -float("inf")]).double()))
    return pool[torch.randint(0, len(pool), size)].to(dtype)


def alike(a: Tensor, b: Tensor) -> bool:
    """Equal bits, where any NaN is as good as another."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return same_bits(a, b)
    return torch.equal(a.isnan(), b.isnan()) and same_bits(a.nan_to_num(0.5), b.nan_to_num(0.5))


def split(input: Tensor) -> Tensor:
    """The largest value of each plane; equal ones share the gradient, as in `amax`."""
    return F.global_max_pool2d(input, ties="split", keepdim=False)


def amax(input: Tensor) -> Tensor:
    return input.amax((2, 3))


def gradient(function: Callable[..., Any], input: Tensor, grad: Tensor, *arguments: Any) -> Tensor:
    leaf = input.detach().requires_grad_()
    output = function(leaf, *arguments)
    return torch.autograd.grad(output, leaf, grad.to(output.dtype))[0]
