# SPDX-License-Identifier: MIT
"""Why a convolution or a normalisation that a rule is for runs torch's code after all, and what would help."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from opswap.ops._convolution import HALVES, gradient_overruns, pair
from opswap.ops.conv import conv_able, conv_pays, why_left
from opswap.ops.depthwise import FEWEST_CHANNELS, depthwise_able, depthwise_fits
from opswap.ops.pointwise import module_overruns, pointwise_fits, takes_pixels

from ..runtime.condition_texts import describe_condition
from ..runtime.shown import contiguous_images, shown

__all__ = ["elements", "images"]

_FLOATS = (torch.float32, torch.float64)
_WITH_HALVES = (*_FLOATS, *HALVES)
_RIGHT = "torch's gradient of its weight is right"
_TRAINS = "; swap(model, memory_format=torch.channels_last) copies it into this format while it trains"


def elements(input: Any, fewest: int) -> str:
    """That an input is too small, or ""."""
    if not isinstance(input, Tensor) or input.numel() >= fewest:
        return ""
    return f"torch is faster on fewer than {fewest} elements: the input has {input.numel()}"


def images(input: Any, weight: Any = None) -> str:
    """What the kernels for images in channels_last do not support in this input, "" if nothing."""
    if not isinstance(input, Tensor) or not input.is_cpu or input.layout is not torch.strided:
        return f"no kernel for {shown(input)}"
    if torch.is_autocast_enabled("cpu"):
        return (
            "under autocast it is torch's: a swap under autocast finds the layers that torch computes slowly"
        )
    if input.dtype not in _FLOATS:
        return f"the kernels support float32 and float64: the input is {shown(input)}"
    return _images(input, weight)


def _images(input: Tensor, weight: Any) -> str:
    """`images` of a dtype that the kernels support."""
    if isinstance(weight, Tensor) and weight.dtype is not input.dtype:
        return f"the dtypes differ: the weight is {shown(weight)}, the input {shown(input)}"
    if input.dim() != 4:
        return f"the kernels support a batch of images: the input is {shown(input)}"
    reason = contiguous_images(input)
    if reason:
        return f"{reason}{_TRAINS}"
    return "" if input.stride(1) == 1 else f"the kernels support channels_last: the input is {shown(input)}"


def _pixels(input: Any, weight: Any, stride: Any) -> str:
    if contiguous_images(input) and pair(stride) != [1, 1]:
        return f"the kernels support contiguous images without a stride: it is {stride}"
    return images(input, weight)


def _dense(input: Any, weight: Any, *options: Any) -> str:
    return images(input, weight) or why_left(input, weight, *options)


def _depthwise(input: Any, weight: Any, *options: Any) -> str:
    if not isinstance(input, Tensor) or not input.is_cpu or input.dtype not in _WITH_HALVES:
        return images(input, weight)
    if input.dim() == 4 and input.shape[1] < FEWEST_CHANNELS:
        return f"torch is faster on fewer than {FEWEST_CHANNELS} channels: the input is {shown(input)}"
    casts = torch.is_autocast_enabled("cpu") and torch.float64 not in (input.dtype, weight.dtype)
    reason = _images(input, None if casts else weight)
    if not contiguous_images(input) or not reason.endswith(_TRAINS):
        return reason
    return f"torch is as fast on contiguous images of this size: the input is {shown(input)}{_TRAINS}"


def _dense_module(module: nn.Conv2d, input: Any) -> str:
    return _dense(input, module.weight, module.stride, module.padding, module.dilation)


describe_condition(conv_able, _dense_module)
describe_condition(conv_pays, _dense)
describe_condition(takes_pixels, lambda module, input: _pixels(input, module.weight, module.stride))
describe_condition(pointwise_fits, _pixels)
describe_condition(module_overruns, lambda module, input: _RIGHT)
describe_condition(gradient_overruns, lambda *_: _RIGHT)
describe_condition(depthwise_able, lambda module, input: _depthwise(input, module.weight))
describe_condition(depthwise_fits, _depthwise)
