# SPDX-License-Identifier: MIT
"""Dense convolutions in channels_last: the gradients of weight and bias by a kernel, the rest by torch's library.

The convolution library computes an output and the gradient of an input at 70 to 90 % of the peak of the multipliers,
and the gradient of a weight at 30 to 60 %, because its tiles touch the pixels in strides that no prefetcher follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.autograd import Function

from opswap import _core

from ._convolution import Pair, library_backward, padding_numbers, pair
from ._function import base_apply, needs_graph, plain_cpu, plain_eager
from ._stats import count_kernel, count_reference
from .pointwise import FEW_WEIGHTS, pointwise_wins

__all__ = ["conv_able", "conv_fits", "conv_wins", "dense_conv2d", "module_window", "why_kept"]

_NAME = "conv2d"
_NAME_BACKWARD = f"{_NAME}_backward"
_DTYPES = (torch.float32, torch.float64)
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_is_autocast = torch.is_autocast_enabled

_MOST_TAPS = 13  # in a direction
# Of input or output, by tier: with fewer there is nothing for vectors.
_FEWEST_CHANNELS = {"avx2": 8, "avx512": 16}
# Products of a pass, below which calling the library and the kernel costs what the kernel gains.
_FEWEST_PRODUCTS = 1 << 24

Window = tuple[list[int], list[int], list[int]]  # stride, padding, dilation


class DenseConv2d(Function):
    """Where nothing but autograd watches."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
        ctx.window = window
        ctx.save_for_backward(input, weight)
        return torch_functional.conv2d(input, weight, bias, *window)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        tensors, mask = (grad_output, input, weight), ctx.needs_input_grad[:3]
        gradients = NotImplemented
        if plain_eager() and not needs_graph(tensors):
            gradients = _kernel_backward(*tensors, ctx.window, mask)
        if gradients is not NotImplemented:
            count_kernel(_NAME_BACKWARD)
            return *gradients, None
        count_reference(_NAME_BACKWARD)
        return *_library_backward(*tensors, ctx.window, mask), None


_apply = base_apply(DenseConv2d)


def _library_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, window: Window, mask: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    stride, padding, dilation = window
    return library_backward(grad_output, input, weight, stride, padding, 1, mask, dilation)


def _kernel_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, window: Window, mask: Sequence[bool]
) -> Any:
    """The gradients of input, weight and bias that mask asks for, or NotImplemented."""
    if not plain_cpu((grad_output,)):
        return NotImplemented
    if grad_output.stride(1) != 1:
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
    of_weight = _core.plain_conv_backward(grad_output, input, weight, *window, mask[2])
    if of_weight is NotImplemented:
        return NotImplemented
    of_input = None
    if mask[0]:
        of_input = _library_backward(grad_output, input, weight, window, (True, False, False))[0]
    return of_input, *of_weight


def _wins_avx2(channels: int, outputs: int, taps: int) -> bool:
    """1.2 to 2 times as fast, 1x1 with large weights 0.9 times."""
    return taps > 1 or channels * outputs < FEW_WEIGHTS


def _wins_avx512(channels: int, outputs: int, taps: int) -> bool:
    """1.1 to 3 times as fast; 0.94 to 1.3 times with 8 to 31 channels and several taps."""
    if channels < 8:
        return outputs >= 16 and (taps > 1 or outputs <= 64)
    return taps == 1 or channels >= 32


# By tier, measured on Zen 5 in float32, in float64 the gain is larger.
_WINS = {"avx2": _wins_avx2, "avx512": _wins_avx512}


def conv_wins(channels: int, outputs: int, taps: Sequence[int], pixels: int | None = None) -> bool:
    """True where the kernel was measured faster than torch's gradient of the weight, on the tier in use.

    Args: channels, outputs: of input and output. taps: (kH, kW). pixels: of the output, in all images; None: many.
    """
    tier = _core.isa_current()
    if tier not in _WINS or max(taps) > _MOST_TAPS or max(channels, outputs) < _FEWEST_CHANNELS[tier]:
        return False
    count = taps[0] * taps[1]
    enough = pixels is None or pixels * channels * outputs * count >= _FEWEST_PRODUCTS
    return enough and _WINS[tier](channels, outputs, count)


def _is_left_to_pointwise(weight: Sequence[int], window: Window) -> bool:
    """True for what `pointwise_conv2d` computes as a whole on this tier; weight: its size."""
    outputs, channels, *taps = weight
    one_map = taps == [1, 1] and window[1] == [0, 0]
    return one_map and pointwise_wins() and outputs * channels < FEW_WEIGHTS


def why_kept(weight: Sequence[int], window: Window) -> str | None:
    """Why a dense convolution is not replaced: "" if it is, None if another operator is for it, or none.

    Args: weight: its size (out, C, kH, kW).
    """
    outputs, channels, *taps = weight
    tier = _core.isa_current()
    if tier not in _WINS or _is_left_to_pointwise(weight, window):
        return None
    if max(outputs, channels) < _FEWEST_CHANNELS[tier]:
        return None
    if max(taps) > _MOST_TAPS:
        return f"a window of {tuple(taps)}: the kernel takes up to {_MOST_TAPS} taps in a direction"
    if not conv_wins(channels, outputs, taps):
        return f"{channels} channels in, {outputs} out, a window of {tuple(taps)}: torch is as fast"
    return ""


def _window(weight: Tensor, stride: Pair, padding: Pair | str, dilation: Pair) -> Window | None:
    """The options in numbers; None where they are none, or not of two directions."""
    try:
        numbers = padding_numbers(padding, weight.shape[2:], stride, dilation)
        window = (pair(stride), numbers, pair(dilation))
    except TypeError:
        return None
    for option in window:
        if option is None or len(option) != 2:
            return None
    return window


def conv_fits(
    input: Any, weight: Any, stride: Pair = 1, padding: Pair | str = 0, dilation: Pair = 1
) -> Window | None:
    """The options in numbers if the kernel is faster for this call of torch's function with one group, else None.

    Only a call whose weight gets a gradient: everything else of a convolution is torch's. The tensors are ordinary
    ones in channels_last, slices of more channels included.
    """
    if _compiling() or not _grad_enabled() or not isinstance(input, Tensor) or not isinstance(weight, Tensor):
        return None
    if _is_autocast("cpu") or not plain_cpu((input, weight)):
        return None
    if input.dim() != 4 or weight.dim() != 4 or not weight.requires_grad or input.dtype not in _DTYPES:
        return None
    if weight.dtype is not input.dtype or input.stride(1) != 1:
        return None
    batch, channels, height, width = input.shape
    outputs, _, *taps = weight.shape
    window = _window(weight, stride, padding, dilation)
    if window is None or channels != weight.shape[1] or _is_left_to_pointwise(weight.shape, window):
        return None
    steps = max(window[0][0] * window[0][1], 1)
    return window if conv_wins(channels, outputs, taps, batch * height * width // steps) else None


def module_window(module: nn.Conv2d) -> Window | None:
    """The options of a module in numbers; None for another padding than by as many zeros on both sides."""
    if module.padding_mode != "zeros":
        return None
    return _window(module.weight, module.stride, module.padding, module.dilation)


def conv_able(module: nn.Conv2d, input: Any) -> bool:
    """`conv_fits` for the weight and the options of a module."""
    if module.groups != 1 or module.padding_mode != "zeros":
        return False
    return conv_fits(input, module.weight, module.stride, module.padding, module.dilation) is not None


def dense_conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair | str, dilation: Pair
) -> Any:
    """torch's convolution with one group, its backward by the kernel; NotImplemented if `conv_fits` returns None.

    Args: as torch.nn.functional.conv2d.
    """
    window = conv_fits(input, weight, stride, padding, dilation)
    if window is None or not (bias is None or plain_cpu((bias,))):
        return NotImplemented
    count_kernel(_NAME)
    return _apply(input, weight, bias, window)
