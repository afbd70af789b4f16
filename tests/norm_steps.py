# SPDX-License-Identifier: MIT
"""What the tests of normalisations share: parameters, a step, and how near it must be to float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["DISTANCES", "assert_close", "parameters", "step", "vectors"]

# Of how many distances of 1 to the next number an error may be, relative to the largest value: as in test_norm.py.
DISTANCES = {torch.float32: 128, torch.float64: 4096, torch.bfloat16: 1, torch.float16: 1}


def vectors(channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return (torch.rand(channels) + 0.5).to(dtype), torch.randn(channels).to(dtype)


def parameters(channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a BatchNorm: running_mean, running_var, weight, bias."""
    running = torch.randn(channels).to(dtype), (torch.rand(channels) + 0.5).to(dtype)
    return (*running, *vectors(channels, dtype))


def step(function: Callable[..., Tensor], grad: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """The output and the gradients of the tensors that are there."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], grad.to(y.dtype))]


def assert_close(got: Tensor, want: Tensor, distances: float | None = None) -> None:
    assert got.shape == want.shape
    allowed = (distances or DISTANCES[got.dtype]) * torch.finfo(got.dtype).eps
    assert (got.double() - want).abs().max().item() <= allowed * (want.abs().max().item() + 1)
