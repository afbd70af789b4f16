# SPDX-License-Identifier: MIT
"""A tensor over the mean of its squares, as LPRNet scales the features of its global context.

Two passes, one for the sum and one that writes, and as many in the backward, in place of torch's square, mean and
quotient, and seven operators in its backward. Saved are the input and a number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function_unary

from opswap import _core

from .._function import DeclinedError, base_apply, needs_graph, plain_eager
from .._layout import dense_copy, suggest_memory_format
from .._stats import count_kernel, count_reference, reference_forced

__all__ = ["over_mean_square"]

_NAME = "over_mean_square"
_NAME_BACKWARD = f"{_NAME}_backward"


class OverMeanSquare(Function):
    """Ordinary tensors that are dense in one of both memory formats."""

    @staticmethod
    def forward(ctx: Any, input: Tensor) -> Tensor:
        made = _core.plain_over_mean_square(input, True)
        if made is NotImplemented:
            raise DeclinedError
        output, ctx.mean_square = made
        # As many tensors as torch's operators save, and of their kinds: a checkpoint may run these at the second time.
        ctx.save_for_backward(input, input.new_tensor(ctx.mean_square), input)
        count_kernel(_NAME)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        input, *_ = ctx.saved_tensors
        if plain_eager() and not torch.is_grad_enabled():
            if grad_output.stride() != input.stride():  # behind a cat, a part of its gradient
                grad_output = dense_copy(grad_output, suggest_memory_format(input))
            made = _core.plain_over_mean_square_backward(grad_output, input, ctx.mean_square)
            if made is not NotImplemented:
                count_kernel(_NAME_BACKWARD)
                return made
        return _gradient(grad_output, input)


_apply = base_apply(OverMeanSquare)


def _gradient(grad_output: Tensor, input: Tensor) -> Tensor:
    """In torch's operators, which have a gradient again; in float32 for 16 bits."""
    wide = torch.promote_types(input.dtype, torch.float32)
    x, grad = input.to(wide), grad_output.to(wide)
    mean_square = x.square().mean()
    product = (grad * x).mean()
    return (grad / mean_square - x * (2 * product / mean_square.square())).to(input.dtype)


def over_mean_square(input: Tensor) -> Tensor:
    """input / input.square().mean(), over all elements.

    Args: input: of any size, floating point. The kernels take float32, bfloat16 and float16 on the CPU, dense in the
        contiguous format or channels_last. Everything else, and calls under torch.compile, torch.func, modes and
        traces, runs torch's operators.
    Returns: the same size, strides and dtype. The sum is good to float64's precision, does not depend on the number of
        threads, and is not rounded to 16 bits.
    Raises: as torch's operators: RuntimeError for whole numbers, TypeError for an argument that is not a tensor.
    Source: the global context of the ports of LPRNet to PyTorch.
    """
    if plain_eager() and isinstance(input, Tensor):
        if not needs_graph((input,)):
            made = _core.plain_over_mean_square(input, False)
            if made is not NotImplemented:
                count_kernel(_NAME)
                return made
        else:
            try:
                return _apply(input)
            except DeclinedError:
                pass
    if not isinstance(input, Tensor):
        raise TypeError(f"{_NAME}: expected a tensor, got {type(input).__name__}")
    if has_torch_function_unary(input):
        return handle_torch_function(over_mean_square, (input,), input)
    if (input.device.type != "cpu" or reference_forced()) and not torch.compiler.is_compiling():
        count_reference(_NAME)
    return input / input.square().mean()
