# SPDX-License-Identifier: MIT
"""BatchNorm, its activation and the max pool behind them, as ResNet's and ShuffleNetV2's first layers have them.

The normalised images stay in the cache, strip by strip, and are pooled from there. Saved for the backward are the
input, the statistics, the parameters and a byte for each output: which tap of its window is the maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from opswap import _core

from .._function import DeclinedError, base_apply, needs_graph, plain_eager
from .._layout import suggest_memory_format
from .._stats import count_kernel
from ..pool.max_pool import max_pool2d, max_pool_gradient
from ._operators import gradient_reads_bias, gradients, try_backward
from .batch_norm import batch_norm_act, joins_activation

__all__ = ["batch_norm_act_max_pool2d"]

_NAME = "batch_norm_max_pool"
_NAME_BACKWARD = f"{_NAME}_backward"
_Vector = Tensor | None
_Sides = int | Sequence[int]


def _repays(input: Tensor, output: Tensor) -> bool:
    """True if the gradient by strips is faster than those of both operations: it takes the values that the pool has
    chosen from the input one by one, which takes longer than all values in order if each is chosen several times, or
    if planes of 16 bits are converted one value at a time."""
    alone = input.element_size() == 2 and input.is_contiguous()
    return not alone and 2 * output.numel() <= input.numel()


class BatchNormActMaxPool(Function):
    """Ordinary images in one of both memory formats."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        made = _core.plain_batch_norm_max_pool(*args, True)
        if made is NotImplemented:
            raise DeclinedError
        output, statistics, offsets, ctx.window = made
        ctx.training, _, ctx.eps, ctx.activation, *_, input, _, _, weight, bias = args
        reads_bias = gradient_reads_bias(ctx.activation)
        # As many tensors as both operations save, in their order: a checkpoint may run these at the second time.
        ctx.save_for_backward(input, statistics, weight, bias if reads_bias else None, offsets)
        ctx.bias = None if reads_bias else bias
        ctx.repays = _repays(input, output)
        ctx.nones = (None,) * (len(args) - 5)
        count_kernel(_NAME)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        *saved, offsets = ctx.saved_tensors  # once: a checkpoint unpacks no tensor twice
        if saved[3] is None:
            saved[3] = ctx.bias
        *_, of_input, _, _, of_weight, of_bias = ctx.needs_input_grad
        needed, settings = (of_input, of_weight, of_bias), (ctx.training, ctx.eps, ctx.activation)
        plain, made = plain_eager() and not torch.is_grad_enabled(), NotImplemented
        if plain and ctx.repays:
            arguments = (*settings, needed, *ctx.window, grad_output, offsets, *saved)
            made = _core.plain_batch_norm_max_pool_backward(*arguments)
        if made is not NotImplemented:
            count_kernel(_NAME_BACKWARD)
        else:
            size, memory_format = tuple(saved[0].shape), suggest_memory_format(saved[0])
            grad = max_pool_gradient(ctx.window, 1, size, memory_format, offsets, grad_output)
            if plain:
                made = try_backward(*settings, needed, grad, *saved)
            if made is NotImplemented:
                made = gradients(saved, settings, needed, grad)
        return *ctx.nones, made[0], None, None, made[1], made[2]


_apply = base_apply(BatchNormActMaxPool)


def _try_kernel(activation: str | None, input: Tensor, weight: _Vector, bias: _Vector, arguments: Any) -> Any:
    """The output, or NotImplemented.

    Args: arguments: of the extension's function, but for the last one.
    """
    if not plain_eager() or not isinstance(input, Tensor):
        return NotImplemented
    trained = [t for t in (input, weight, bias) if isinstance(t, Tensor)]
    graph = needs_graph(trained)
    if not joins_activation(activation, input, weight, bias, graph):
        return NotImplemented
    if graph:
        try:
            return _apply(*arguments)
        except DeclinedError:
            return NotImplemented
    output = _core.plain_batch_norm_max_pool(*arguments, False)
    if output is not NotImplemented:
        count_kernel(_NAME)
    return output


def batch_norm_act_max_pool2d(
    input: Tensor,
    running_mean: _Vector,
    running_var: _Vector,
    weight: _Vector = None,
    bias: _Vector = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
    *,
    kernel_size: _Sides,
    stride: _Sides | None = None,
    padding: _Sides = 0,
    dilation: _Sides = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """torch.nn.functional.batch_norm, the activation and the max pool after it, in one.

    Args:
        input: (N, C, H, W). The kernels take float32, float64, bfloat16 and float16 on the CPU in dense contiguous or
            channels_last memory, up to 256 taps, and sizes of which the rows of a window, in channels_last, or else
            a plane take at most 256 KiB. Everything else, and calls under torch.compile, torch.func, modes and traces,
            runs `batch_norm_act` and `max_pool2d`.
        running_mean, running_var, weight, bias, training, momentum, eps, activation: as of `batch_norm_act`.
        kernel_size, stride, padding, dilation, ceil_mode: as of `max_pool2d`.
    Returns: (N, C, OH, OW), in the memory format of input: the bits of both functions one after the other. Gradients
        are theirs but for the order in which sums are added. Neither depends on the number of threads.
    Raises: as both functions.
    """
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    settings, vectors = (training, momentum, eps, activation), (running_mean, running_var, weight, bias)
    output = _try_kernel(activation, input, weight, bias, (*settings, *window, input, *vectors))
    if output is not NotImplemented:
        return output
    return max_pool2d(batch_norm_act(input, *vectors, *settings), *window)
