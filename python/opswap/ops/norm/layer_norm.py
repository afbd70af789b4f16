# SPDX-License-Identifier: MIT
"""LayerNorm over the last dimension, and over the channels of images in channels_last, which is the same.

A row is read from memory once and written once. Saved for the backward are the input, two numbers per row and the
parameters. Everything but dense tensors that are normalised over one dimension is torch's function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from opswap import _core

from .._function import tracing
from .._layout import dense_copy
from .._stats import count_reference, reference_forced
from ._arguments import FLOATS, are_vectors
from ._operators import wanted
from ._pair import Backward, Forward, make_pair

__all__ = ["layer_norm", "layer_norm2d", "layer_norm2d_fits", "layer_norm_fits"]

_NAME = "layer_norm"
_MOST_DIMENSIONS = 8  # of csrc/binding
_CONTIGUOUS = torch.contiguous_format
# Permutations of images to rows of channels, and back, by the number of dimensions.
_ROWS = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}
_IMAGES = {4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
_compiling = torch.compiler.is_dynamo_compiling

_Vector = Tensor | None


# --- what the kernels take -------------------------------------------------------------------------------------------


def _is_plain(input: Any) -> bool:
    """True for a tensor on the CPU with elements, in a dtype of the kernels."""
    if not isinstance(input, Tensor) or not input.is_cpu or input.layout is not torch.strided:
        return False
    return input.dtype in FLOATS and not input.is_nested and input.numel() > 0


def layer_norm_fits(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> bool:
    """True if the kernels compute this call of torch.nn.functional.layer_norm."""
    if not isinstance(normalized_shape, (tuple, list)) or len(normalized_shape) != 1:
        return False
    if not isinstance(eps, float) or not eps > 0 or not _is_plain(input):
        return False
    if not 2 <= input.dim() <= _MOST_DIMENSIONS or not input.is_contiguous():
        return False
    channels = input.shape[-1]
    return channels > 1 and normalized_shape[0] == channels and are_vectors(input, channels, weight, bias)


def layer_norm2d_fits(input: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5) -> bool:
    """True if the kernels compute this call of `layer_norm2d`."""
    if not isinstance(input, Tensor) or input.dim() not in _ROWS:
        return False
    return layer_norm_fits(input.permute(_ROWS[input.dim()]), (input.shape[1],), weight, bias, eps)


# --- the operators ---------------------------------------------------------------------------------------------------


def _normalise(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised rows, their means and inverse deviations."""
    mean = x.mean(-1, keepdim=True)
    rstd = ((x - mean).square().mean(-1, keepdim=True) + eps).rsqrt()
    return (x - mean) * rstd, mean, rstd


def _reference(input: Tensor, weight: _Vector, bias: _Vector, eps: float) -> Any:
    """In float64; differentiable."""
    _check(input)
    output, mean, rstd = _normalise(input.double(), eps)
    if weight is not None:
        output = output * weight.double()
    if bias is not None:
        output = output + bias.double()
    return dense_copy(output.to(input.dtype), _CONTIGUOUS), torch.cat((mean, rstd), -1)


def _check(input: Tensor) -> None:
    if input.dim() < 2:
        raise RuntimeError(f"layer_norm: input of size {tuple(input.shape)} has no rows")


def _fake(input: Tensor, weight: _Vector, bias: _Vector, eps: float) -> Any:
    _check(input)
    return input.new_empty(input.shape), input.new_empty((*input.shape[:-1], 2), dtype=torch.float64)


def _batched_backward(
    grad_output: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: _Vector,
    bias: _Vector,
    eps: float,
    mask: Sequence[bool],
) -> list[Tensor]:
    """In float64 and operators that batch, for `torch.autograd.grad(..., is_grads_batched=True)`; differentiable."""
    d = grad_output.double()
    normalised, _, rstd = _normalise(input.double(), eps)
    over = list(range(d.dim() - 1))
    grad_weight, grad_bias = (d * normalised).sum(over), d.sum(over)
    if weight is not None:
        d = d * weight.double()
    d = d - d.mean(-1, keepdim=True) - normalised * (d * normalised).mean(-1, keepdim=True)
    return wanted((d * rstd, grad_weight, grad_bias), (input, weight, bias), mask)


# input: (*, C), dense; statistics: (*, 2) float64, the means and inverse deviations of the rows. The output and the
# gradient of input are dense.
_operator = make_pair(
    _NAME,
    "float eps",
    Forward(_core.layer_norm, _reference, _fake),
    Backward(_core.layer_norm_backward, _batched_backward),
)


# --- the functions ---------------------------------------------------------------------------------------------------


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: _Vector = None,
    bias: _Vector = None,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.layer_norm, faster and more accurate over one dimension.

    Args:
        input: (*, C). The kernels take dense tensors of two dimensions and more on the CPU, of float32, float64,
            bfloat16 and float16, and C of at least 2. For everything else torch's function runs.
        normalized_shape: (C,); with more dimensions torch's function runs.
        weight, bias: (C), scale and shift after the normalisation; of the dtype of input, or float32 beside 16 bits.
        eps: added to the variance.

    Returns: (*, C), dense, of the dtype of input. A mean that is large against the deviation costs no accuracy.
        The bits of a row do not depend on the other rows, and those of gradients not on the number of threads.
        Arithmetic is float32, or float64 for float64, for which the kernels have no vectors.

    Raises: as torch.nn.functional.layer_norm.

    Source: Ba, Kiros and Hinton 2016, Layer Normalization.
    """
    if has_torch_function((input, weight, bias)):
        return handle_torch_function(
            layer_norm, (input, weight, bias), input, normalized_shape, weight, bias, eps
        )
    if tracing():
        return torch_functional.layer_norm(input, normalized_shape, weight, bias, eps)
    if not reference_forced() and layer_norm_fits(input, normalized_shape, weight, bias, eps):
        return _operator(input, weight, bias, eps)[0]
    if not _compiling():
        count_reference(_NAME)
    return torch_functional.layer_norm(input, normalized_shape, weight, bias, eps)


def layer_norm2d(input: Tensor, weight: _Vector = None, bias: _Vector = None, eps: float = 1e-5) -> Tensor:
    """Normalise the channels of each pixel: `layer_norm` over dimension 1.

    Args:
        input: (N, C, H, W) or (N, C, D, H, W). In dense channels_last the channels of a pixel are neighbours, and no
            copy is made; other layouts are copied.
        weight, bias, eps: as of `layer_norm`.

    Returns: the size and dtype of input, in channels_last.

    Raises: RuntimeError if input has another number of dimensions; else as torch.nn.functional.layer_norm.

    Source: Liu et al. 2022, A ConvNet for the 2020s.
    """
    if has_torch_function((input, weight, bias)):
        return handle_torch_function(layer_norm2d, (input, weight, bias), input, weight, bias, eps)
    if not isinstance(input, Tensor):
        raise TypeError(f"layer_norm2d: input must be a tensor, got {type(input).__name__}")
    ndim = input.dim()
    if ndim not in _ROWS:
        raise RuntimeError(f"layer_norm2d: input of size {tuple(input.shape)} must have 4 or 5 dimensions")
    rows = input.permute(_ROWS[ndim]).contiguous()
    return layer_norm(rows, (input.shape[1],), weight, bias, eps).permute(_IMAGES[ndim])
