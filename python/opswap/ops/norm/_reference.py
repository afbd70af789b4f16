# SPDX-License-Identifier: MIT
"""Batch normalisation, its derivatives and their derivatives in plain torch code.

The fallback if no kernel runs, the oracle of the tests, and what second derivatives are made of. Statistics are a
(2, C) float64 tensor: means and biased variances.
"""

from __future__ import annotations

import torch
import torch.nn.functional as torch_functional
from torch import Tensor

from .._layout import batch_norm_format, dense_copy
from ._activations import activate, slope
from .torch_norms import torch_batch_norm, vector_misread

__all__ = ["normalize", "normalize_backward", "normalize_jvp", "reference", "update_running"]


def reference(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
) -> Tensor:
    """torch's own batch_norm and activation, one after the other.

    Args, returns and raises: as `batch_norm_act`.
    """
    misread = vector_misread(input, weight, running_mean, running_var)
    function = torch_batch_norm if misread else torch_functional.batch_norm
    output = function(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return activate(output, activation)


def _per_channel(vector: Tensor, input: Tensor) -> Tensor:
    return vector.view(1, -1, *(1 for _ in input.shape[2:]))


def _over_channel(values: Tensor) -> Tensor:
    return values.sum([0, *range(2, values.dim())])


def _batch_statistics(input: Tensor) -> Tensor:
    dims = [0, *range(2, input.dim())]
    return torch.stack((input.mean(dims), input.var(dims, correction=0)))


def _parts(
    input: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """In float64: 1 / std and weight, as (1, C, 1, ...), and the normalised input."""
    mean, var = (_per_channel(s, input) for s in statistics.unbind(0))
    invstd = (var + eps).rsqrt()
    scale = torch.ones_like(mean) if weight is None else _per_channel(weight.double(), input)
    return invstd, scale, (input - mean) * invstd


def _affine(normalised: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    z = normalised * scale
    return z if bias is None else z + _per_channel(bias.double(), z)


def normalize(
    input: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    """The output, dense in torch's memory format, and the statistics used: those given or the batch's."""
    x = input.double()
    given = mean is not None and var is not None
    statistics = torch.stack((mean.double(), var.double())) if given else _batch_statistics(x)
    _, scale, normalised = _parts(x, statistics, weight, bias, eps)
    output = activate(_affine(normalised, scale, bias), activation)
    return dense_copy(output.to(input.dtype), batch_norm_format(input)), statistics


def normalize_backward(
    grad_output: Tensor,
    input: Tensor,
    statistics: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias in float64, differentiable in every argument.

    statistics: constants; None: those of input, on which they depend.
    """
    x, grad = input.double(), grad_output.double()
    training = statistics is None
    statistics = _batch_statistics(x) if statistics is None else statistics
    invstd, scale, normalised = _parts(x, statistics, weight, bias, eps)
    gate = slope(_affine(normalised, scale, bias), activation)
    d = grad if gate is None else torch.where(gate == 0, 0, grad * gate)
    grad_weight, grad_bias = _over_channel(d * normalised), _over_channel(d)
    if training:
        count = input.numel() / max(input.shape[1], 1)
        d = d - (_per_channel(grad_bias, d) + normalised * _per_channel(grad_weight, d)) / count
    return d * scale * invstd, grad_weight, grad_bias


def normalize_jvp(
    input: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    eps: float,
    activation: str | None,
    tangents: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> Tensor:
    """Tangent of the output for tangents of input, weight and bias, in the dtype of input."""
    tangent, weight_tangent, bias_tangent = tangents
    x = input.double()
    invstd, scale, normalised = _parts(x, statistics, weight, bias, eps)
    z = _affine(normalised, scale, bias)
    out = torch.zeros_like(z)
    if tangent is not None:
        t = tangent.double()
        if training:
            dims = [0, *range(2, t.dim())]
            t = t - t.mean(dims, keepdim=True)
            t = t - normalised * (normalised * t).mean(dims, keepdim=True)
        out = out + t * invstd * scale
    if weight_tangent is not None:
        out = out + normalised * _per_channel(weight_tangent.double(), z)
    if bias_tangent is not None:
        out = out + _per_channel(bias_tangent.double(), z)
    gate = slope(z, activation)
    return (out if gate is None else out * gate).to(input.dtype)


def update_running(
    statistics: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, count: int
) -> None:
    """Move the running statistics towards those of a batch of `count` values per channel, in place."""
    mean, var = statistics.unbind(0)
    unbiased = var * (count / (count - 1))
    # One write of each: a fake tensor of the batch would leave a first of two writes to a real one behind.
    for running, of_batch in ((running_mean, mean), (running_var, unbiased)):
        running.copy_((running * (1 - momentum)).add_(of_batch.to(running.dtype), alpha=momentum))
