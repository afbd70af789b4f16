# SPDX-License-Identifier: MIT
"""Group normalisation, its gradient and the gradient's gradient in plain torch code.

Statistics are a (N, groups, 2) float64 tensor: means and biased variances.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._layout import dense_copy, suggest_memory_format

__all__ = ["normalize_groups", "normalize_groups_backward"]


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(N, C, *) as (N, groups, C / groups, *): a view, also of channels_last."""
    return x.view(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _per_channel(vector: Tensor, grouped: Tensor) -> Tensor:
    return vector.double().view(1, *grouped.shape[1:3], *(1 for _ in grouped.shape[3:]))


def _mean(grouped: Tensor) -> Tensor:
    """Of each group, kept as dimensions of size 1."""
    return grouped.mean(list(range(2, grouped.dim())), keepdim=True)


def _normalise(grouped: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised input, its means and its variances."""
    mean = _mean(grouped)
    var = _mean((grouped - mean).square())
    return (grouped - mean) * (var + eps).rsqrt(), mean, var


def normalize_groups(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor]:
    """The output, dense in the memory format of input, and the statistics; differentiable."""
    output, mean, var = _normalise(_grouped(input.double(), groups), eps)
    if weight is not None:
        output = output * _per_channel(weight, output)
    if bias is not None:
        output = output + _per_channel(bias, output)
    statistics = torch.stack((mean, var), -1).view(input.shape[0], groups, 2)
    output = output.to(input.dtype).view(input.shape)
    return dense_copy(output, suggest_memory_format(input)), statistics


def normalize_groups_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias in float64, differentiable in every argument."""
    d = _grouped(grad_output.double(), groups)
    normalised, _, var = _normalise(_grouped(input.double(), groups), eps)
    over = [0, *range(3, d.dim())]
    grad_weight, grad_bias = ((t.sum(over).view(input.shape[1])) for t in (d * normalised, d))
    if weight is not None:
        d = d * _per_channel(weight, d)
    d = (d - _mean(d) - normalised * _mean(d * normalised)) * (var + eps).rsqrt()
    return d.view(input.shape), grad_weight, grad_bias
