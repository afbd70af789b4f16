# SPDX-License-Identifier: MIT
"""GroupNorm and InstanceNorm in channels_last: one pass for the statistics of an image, one that writes.

An image is normalised while it is in the caches. Saved for the backward are the input, the statistics and the
parameters. Everything but dense channels_last is torch's function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from opswap import _core

from .._function import needs_graph, tracing
from .._layout import empty, suggest_memory_format
from .._stats import count_reference, reference_forced
from ._arguments import FLOATS, are_vectors
from ._group_reference import normalize_groups, normalize_groups_backward
from ._operators import wanted
from ._pair import Backward, Forward, make_pair
from .torch_norms import gradient_missing, torch_group_norm, torch_instance_norm

__all__ = [
    "group_norm",
    "group_norm_fits",
    "instance_norm",
    "instance_norm_fits",
]

_NAME = "group_norm"
_compiling = torch.compiler.is_dynamo_compiling

_Vector = Tensor | None


# --- what the kernels support ----------------------------------------------------------------------------------------


def _is_dense_image(input: Any) -> bool:
    """True for a tensor on the CPU, in a dtype of the kernels, that is a matrix of pixels: dense in channels_last."""
    if not isinstance(input, Tensor) or not input.is_cpu or input.layout is not torch.strided:
        return False
    if input.dtype not in FLOATS or input.is_nested:
        return False
    if input.dim() == 4:
        n, c, h, w = input.shape
        pixels, strides = h * w, (c * h * w, 1, c * w, c)
    elif input.dim() == 5:
        n, c, d, h, w = input.shape
        pixels, strides = d * h * w, (c * d * h * w, 1, c * h * w, c * w, c)
    else:
        return False
    return n > 0 and c > 1 and pixels > 1 and input.stride() == strides


def group_norm_fits(
    input: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> bool:
    """True if the kernels compute this call of torch.nn.functional.group_norm."""
    if type(num_groups) is not int or num_groups < 1 or not isinstance(eps, float) or not eps > 0:
        return False
    return (
        _is_dense_image(input)
        and input.shape[1] % num_groups == 0
        and are_vectors(input, input.shape[1], weight, bias)
    )


def instance_norm_fits(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: Any = True,
    eps: Any = 1e-5,
) -> bool:
    """`group_norm_fits` for torch.nn.functional.instance_norm: without running statistics."""
    if running_mean is not None or running_var is not None or use_input_stats is not True:
        return False
    return _is_dense_image(input) and group_norm_fits(input, int(input.shape[1]), weight, bias, eps)


# --- the operators ---------------------------------------------------------------------------------------------------


def _check(input: Tensor, groups: int) -> None:
    if input.dim() < 2 or groups < 1 or input.shape[1] % groups:
        raise RuntimeError(
            f"group_norm: input of size {tuple(input.shape)} cannot be split into {groups} groups"
        )


def _reference(input: Tensor, weight: _Vector, bias: _Vector, groups: int, eps: float) -> Any:
    _check(input, groups)
    return normalize_groups(input, weight, bias, groups, eps)


def _fake(input: Tensor, weight: _Vector, bias: _Vector, groups: int, eps: float) -> Any:
    _check(input, groups)
    output = empty(input, input.shape, suggest_memory_format(input))
    return output, input.new_empty((input.shape[0], groups, 2), dtype=torch.float64)


def _batched_backward(
    grad_output: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: _Vector,
    bias: _Vector,
    groups: int,
    eps: float,
    mask: Sequence[bool],
) -> list[Tensor]:
    """In operators that batch, for `torch.autograd.grad(..., is_grads_batched=True)`, whose vmap ignores rules."""
    grads = normalize_groups_backward(grad_output, input, weight, groups, eps)
    return wanted(grads, (input, weight, bias), mask)


# input: (N, C, *); statistics: (N, groups, 2) float64, the means and biased variances. The output and the gradient of
# input are dense in the memory format of input.
_operator = make_pair(
    _NAME,
    "int groups, float eps",
    Forward(_core.group_norm, _reference, _fake),
    Backward(_core.group_norm_backward, _batched_backward),
)


# --- the functions ---------------------------------------------------------------------------------------------------


def group_norm(
    input: Tensor, num_groups: int, weight: _Vector = None, bias: _Vector = None, eps: float = 1e-5
) -> Tensor:
    """torch.nn.functional.group_norm, faster and more accurate in channels_last.

    Args:
        input: (N, C, *). The kernels support dense (N, C, H, W) in channels_last and (N, C, D, H, W) in
            channels_last_3d, of float32, float64, bfloat16 and float16, with at least two channels and two positions.
            For everything else torch's function runs.
        num_groups: divides C; each image is normalised by the mean and the biased variance of each group.
        weight, bias: (C), scale and shift after the normalisation; of the dtype of input, or float32 beside 16 bits.
        eps: added to the variance.

    Returns: (N, C, *), dtype and memory format of input. Statistics and sums are good to float64's precision and do
        not depend on the number of threads; arithmetic on values is float32, or float64 for
        float64, for which the kernels have no vectors.

    Raises: as torch.nn.functional.group_norm.

    Source: Wu and He 2018, Group Normalization.
    """
    if has_torch_function((input, weight, bias)):
        return handle_torch_function(group_norm, (input, weight, bias), input, num_groups, weight, bias, eps)
    if tracing():
        return torch_functional.group_norm(input, num_groups, weight, bias, eps)
    if not reference_forced() and group_norm_fits(input, num_groups, weight, bias, eps):
        return _operator(input, weight, bias, num_groups, eps)[0]
    if not _compiling():
        count_reference(_NAME)
    missing = gradient_missing(input, num_groups, weight, bias, eps)
    function = torch_group_norm if missing else torch_functional.group_norm
    return function(input, num_groups, weight, bias, eps)


def instance_norm(
    input: Tensor,
    running_mean: _Vector = None,
    running_var: _Vector = None,
    weight: _Vector = None,
    bias: _Vector = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.instance_norm, faster in channels_last, which torch's function loses.

    Args:
        input: (N, C, *); the kernels support what those of `group_norm` support.
        running_mean, running_var: (C). With running statistics, given or moved, torch's function runs.
        weight, bias: (C), as of `group_norm`.
        use_input_stats: normalise each channel of each image with its own mean and biased variance.
        momentum: share of the batch in the running statistics.
        eps: added to the variance.

    Returns: (N, C, *), in the dtype of input; in its memory format if the kernels support it, else as torch's.

    Raises: as torch.nn.functional.instance_norm.

    Source: Ulyanov, Vedaldi and Lempitsky 2016, Instance Normalization.
    """
    vectors = (running_mean, running_var, weight, bias)
    arguments = (*vectors, use_input_stats, momentum, eps)
    if has_torch_function((input, *vectors)):
        return handle_torch_function(instance_norm, (input, *vectors), input, *arguments)
    if tracing():
        return torch_functional.instance_norm(input, *arguments)
    if instance_norm_fits(input, *vectors, use_input_stats, eps):
        # As torch's, which repeats the weight for every image: it may change before the backward.
        if weight is not None and needs_graph((input, weight, bias)):
            weight = weight.clone()
        return group_norm(input, input.shape[1], weight, bias, eps)
    if not _compiling():
        count_reference("instance_norm")
    return torch_instance_norm(input, *arguments)
