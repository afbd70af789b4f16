# SPDX-License-Identifier: MIT
"""Dense convolutions in channels_last: the gradients of weight and bias by kernels, the rest by torch's library.

The convolution library computes an output and the gradient of an input at 70 to 90 % of the peak of the multipliers,
and the gradient of a weight at 30 to 60 %. The kernels reach 70 to 95 % there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.autograd import Function

from opswap import _core

from ._convolution import library_backward, pair, padding_numbers
from ._function import base_apply, needs_graph, plain_cpu, plain_eager
from ._stats import count_kernel, count_reference, reference_forced
from .pointwise import FEW_WEIGHTS, pointwise_wins

__all__ = ["conv_able", "conv_declines", "conv_wins", "dense_conv2d"]

_NAME = "conv2d"
_NAME_BACKWARD = f"{_NAME}_backward"
_DTYPES = (torch.float32, torch.float64)
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled

MOST_TAPS = 13  # in a direction
FEWEST_PRODUCTS = 1 << 22  # below, two calls of the library in place of one cost what the kernel gains

Pair = int | Sequence[int]


class DenseConv2d(Function):
    """For ordinary eager tensors, of which the kernel reads input and gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> Tensor:
        ctx.window = (stride, padding, dilation)
        ctx.save_for_backward(input, weight)
        return torch_functional.conv2d(input, weight, bias, stride, padding, dilation)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        mask = ctx.needs_input_grad[:3]
        stride, padding, dilation = ctx.window
        gradients = NotImplemented
        if plain_eager() and not needs_graph((grad_output, input, weight)):
            gradients = _kernel_backward(grad_output, input, weight, ctx.window, mask)
        if gradients is NotImplemented:
            count_reference(_NAME_BACKWARD)
            gradients = library_backward(
                grad_output, input, weight, stride, padding, 1, mask, dilation
            )
        else:
            count_kernel(_NAME_BACKWARD)
        return *gradients, None, None, None


_apply = base_apply(DenseConv2d)


def _kernel_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    window: tuple[Sequence[int], Sequence[int], Sequence[int]],
    mask: Sequence[bool],
) -> Any:
    """The gradients of input, weight and bias that mask asks for, or NotImplemented."""
    if not mask[1]:
        return NotImplemented
    if grad_output.stride(1) != 1 and plain_cpu((grad_output,)):
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
    sums = _core.plain_conv_backward(grad_output, input, weight, *window, mask[2])
    if sums is NotImplemented:
        return NotImplemented
    grad_input = None
    if mask[0]:
        stride, padding, dilation = window
        only_input = (True, False, False)
        grad_input = library_backward(
            grad_output, input, weight, stride, padding, 1, only_input, dilation
        )[0]
    return (grad_input, *sums)


def conv_declines(weight: Sequence[int], stride: Sequence[int], padding: Any) -> str | None:
    """Why the kernel is not faster for any input of a dense convolution: "" if it may be, None where it has no part.

    Args: weight: its size (out, C, kH, kW). stride, padding: as torch.nn.functional.conv2d takes them.
    """
    outputs, channels, *taps = weight
    tier = _core.isa_current()
    if tier not in _WINS:
        return None
    if max(taps) > MOST_TAPS:
        return f"a window of {tuple(taps)}: the kernel takes up to {MOST_TAPS} taps in a direction"
    if not _WINS[tier](channels, outputs, taps[0] * taps[1]):
        return f"{channels} channels to {outputs}, {taps[0]}x{taps[1]}: torch is as fast"
    return ""
