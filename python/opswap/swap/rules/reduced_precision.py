# SPDX-License-Identifier: MIT
"""Convolutions and Linears in 16 bits, on CPUs that compute them faster in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opswap import functional as F
from opswap.ops._convolution import is_one
from opswap.ops.depthwise import depthwise_able
from opswap.ops.pointwise import module_overruns, takes_pixels
from opswap.ops.reduced_precision import output_dtype, slow_dtype

from ..rule import Replacement, Rule

__all__ = ["RULES"]


def _dtype_of(weight: Tensor) -> torch.dtype:
    """What a layer with this weight computes in: autocast's dtype, if the model is swapped under autocast."""
    if weight.dtype is torch.float32 and torch.is_autocast_enabled("cpu"):
        return torch.get_autocast_dtype("cpu")
    return weight.dtype


def _has_depthwise_stride(module: nn.Conv2d) -> bool:
    return 1 < module.groups == module.out_channels and not is_one(module.stride)


def _declines_conv2d(module: nn.Module) -> str | None:
    if not slow_dtype(_dtype_of(module.weight), _has_depthwise_stride(module)):
        return None
    if module.padding_mode != "zeros":
        return f"in 16 bits: the kernels support zero padding, not padding_mode={module.padding_mode!r}"
    return ""


def _declines_linear(module: nn.Module) -> str | None:
    return "" if slow_dtype(_dtype_of(module.weight)) else None


def _tensors(module: nn.Conv2d | nn.Linear, input: Tensor) -> tuple[Tensor, ...]:
    """In the order in which torch reads them: a weight that is made at each read may draw random numbers."""
    weight, bias = module.weight, module.bias
    return (input, weight) if bias is None else (input, weight, bias)


def _computes_conv2d(module: nn.Conv2d, input: Tensor) -> bool:
    """True if `conv2d` would not leave this call to torch."""
    if module.padding_mode != "zeros":
        return False
    if output_dtype(_tensors(module, input), _has_depthwise_stride(module)) is not None:
        return True
    return module_overruns(module, input) or takes_pixels(module, input) or depthwise_able(module, input)


def _computes_linear(module: nn.Linear, input: Tensor) -> bool:
    """True if `linear` would not leave this call to torch."""
    return output_dtype(_tensors(module, input)) is not None


_CONV2D = Replacement(
    "computes(m0, x0)",
    "conv2d(x0, m0.weight, m0.bias, m0.stride, m0.padding, m0.dilation, m0.groups)",
    {"computes": _computes_conv2d, "conv2d": F.conv2d},
)
_LINEAR = Replacement(
    "computes(m0, x0)",
    "linear(x0, m0.weight, m0.bias)",
    {"computes": _computes_linear, "linear": F.linear},
)

RULES = (
    Rule("conv2d_16bit", False, modules=(nn.Conv2d,), whole=_CONV2D, declines=_declines_conv2d),
    Rule("linear_16bit", False, modules=(nn.Linear,), whole=_LINEAR, declines=_declines_linear),
)
