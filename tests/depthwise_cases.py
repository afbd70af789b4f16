# SPDX-License-Identifier: MIT
"""Depthwise convolutions by the kernels and by torch, and how near they are to float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as T
from torch import Tensor

from nearness import assert_within_roundings
from opswap import _core

LAST = torch.channels_last
FLOATS = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)


def make(
    n: int, c: int, h: int, w: int, k: int | tuple[int, int] = 3, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Input, weight and bias that ask for gradients."""
    x = torch.randn(n, c, h, w, dtype=dtype).contiguous(memory_format=LAST)
    taps = (k, k) if isinstance(k, int) else k
    tensors = (x, torch.randn(c, 1, *taps, dtype=dtype), torch.randn(c, dtype=dtype))
    return [t.requires_grad_() for t in tensors]


def stock(x: Tensor, w: Tensor, b: Tensor | None, stride: int, padding: Any, dilation: int = 1) -> Tensor:
    return T.conv2d(x, w, b, stride, padding, dilation, x.shape[1])


def all_results(tensors: Sequence[Tensor], grad: Tensor, *window: Any) -> list[Tensor]:
    """torch's output and three gradients."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    output = stock(*leaves, *window)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def kernel_results(
    tensors: Sequence[Tensor], grad: Tensor, stride: int, padding: Any, dilation: int = 1
) -> list[Tensor]:
    x, w, b = tensors
    output = _core.depthwise(x, w, b, stride, padding, dilation)
    return [output, *_core.depthwise_backward(grad, x, w, stride, padding, dilation, True, True, True)]


def assert_near(results: Sequence[Tensor], tensors: Sequence[Tensor], grad: Tensor, *window: Any) -> None:
    """Output and gradients against float64: as near as sums of that many products are."""
    wide = [t.detach().double() for t in (*tensors, grad)]
    truth, magnitudes, terms = (
        all_results([change(t) for t in wide[:3]], change(wide[3]), *window)
        for change in (lambda t: t, torch.abs, torch.ones_like)
    )
    dtypes = (grad.dtype, *(t.dtype for t in tensors))
    names = ("output", "gradient of the input", "gradient of the weight", "gradient of the bias")
    for name, dtype, ours, *expected in zip(names, dtypes, results, truth, magnitudes, terms, strict=True):
        assert ours.dtype == dtype
        assert_within_roundings(ours, *expected, name)


def assert_close(tensors: Sequence[Tensor], *window: Any) -> None:
    """`assert_near` for the kernels."""
    tensors = [t.detach() for t in tensors]
    shape = stock(*(t.double() for t in tensors), *window).shape
    grad = torch.randn(shape, dtype=tensors[0].dtype).contiguous(memory_format=LAST)
    assert_near(kernel_results(tensors, grad, *window), tensors, grad, *window)
