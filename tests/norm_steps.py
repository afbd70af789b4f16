# SPDX-License-Identifier: MIT
"""What the tests of normalisations share: parameters, inputs, a step, and how near it must be to float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from opswap.ops.norm import reference

__all__ = [
    "DISTANCES",
    "assert_close",
    "away_from_kinks",
    "outputs_and_gradients",
    "parameters",
    "step",
    "vectors",
]

# Of how many distances of 1 to the next number an error may be, relative to the largest value. Values may be twenty
# standard deviations, and float64 sums up to 7050 of them without the second word that float32 sums have. Halves
# are computed in float32 and rounded once, which is half a distance.
DISTANCES = {torch.float32: 128, torch.float64: 4096, torch.bfloat16: 1, torch.float16: 1}
# Where the derivative of an activation jumps: there rounding decides which side's it is.
KINKS = (-3.0, -1.0, -0.25, 0.0, 1.0, 1.5, 2.0, 3.0, 6.0)


def vectors(channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return (torch.rand(channels) + 0.5).to(dtype), torch.randn(channels).to(dtype)


def parameters(channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a BatchNorm: running_mean, running_var, weight, bias."""
    running = torch.randn(channels).to(dtype), (torch.rand(channels) + 0.5).to(dtype)
    return (*running, *vectors(channels, dtype))


def away_from_kinks(x: Tensor, vectors: tuple[Tensor, ...], training: bool) -> Tensor:
    """x, moved so that its normalised values are at no kink of an activation."""
    for _ in range(4):
        z = reference(x.double(), *(v.double() for v in vectors), training, 0.0)
        near = sum((z - kink).abs() < 0.05 for kink in KINKS)
        x = torch.where(near > 0, x + 0.2, x.double()).to(x.dtype)
    return x


def outputs_and_gradients(
    function: Callable[..., Tensor],
    x: Tensor,
    grad: Tensor,
    vectors: tuple[Tensor, ...],
    training: bool,
    activation: str | None,
) -> list[Tensor]:
    """Of a BatchNorm: output, gradients of input, weight and bias, running statistics afterwards."""
    mean, var, *affine = (v.clone() for v in vectors)
    leaves = [t.detach().requires_grad_() for t in (x, *affine)]
    y = function(leaves[0], mean, var, *leaves[1:], training, 0.3, 1e-5, activation)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad.to(y.dtype)), mean, var]


def step(function: Callable[..., Tensor], grad: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """The output and the gradients of the tensors that are there."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], grad.to(y.dtype))]


def assert_close(got: Tensor, want: Tensor, distances: float | None = None) -> None:
    assert got.shape == want.shape
    allowed = (distances or DISTANCES[got.dtype]) * torch.finfo(got.dtype).eps
    assert (got.double() - want).abs().max().item() <= allowed * (want.abs().max().item() + 1)
