# SPDX-License-Identifier: MIT
"""Depthwise convolution of channels_last images, forward and both gradients in one pass each.

torch's own library is slow with windows of 7 x 7 and more, and with a dilation. On CPUs without vectors there is
nothing to gain: there, and for everything else that the kernels do not support, torch's convolution runs. Images of 16
bits are read and written as they are, and summed in float32; under autocast weights in float32 are not rounded.

Source: Chollet, "Xception: Deep Learning with Depthwise Separable Convolutions", CVPR 2017, section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.autograd import Function

from opswap import _core
from opswap._torch import constant_in_graphs, functorch_active

from ._convolution import HALVES, Pair, library_backward, padding_numbers, pair, taps_of
from ._convolution_operator import ConvolutionOperator
from ._function import (
    DeclinedError,
    base_apply,
    concrete_size,
    needs_graph,
    plain_cpu,
    records_graphs,
    seen_by_tracer,
    without_autocast,
)
from ._layout import suggest_memory_format
from ._stats import count_kernel, count_reference, reference_forced

__all__ = [
    "FEWEST_CHANNELS",
    "depthwise_able",
    "depthwise_conv2d",
    "depthwise_fits",
    "depthwise_wins",
    "is_depthwise",
    "takes_window",
]

# Looked up once: what lies on the way to a name costs microseconds if it has left the caches.
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_transforms = functorch_active
_is_tracing = torch.jit.is_tracing
_is_autocast = torch.is_autocast_enabled
_NAME = "depthwise_conv2d"
_NAME_BACKWARD = f"{_NAME}_backward"
FEWEST_CHANNELS = 8
_LARGE_ROWS = 1 << 20  # elements: of 480 x 7 x 7 and 32 images 1.0 times as fast, of 240 x 14 x 14 0.97


class DepthwiseConv2d(Function):
    """For ordinary eager tensors; everything else is torch's."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, *window: Pair) -> Tensor:
        output = _core.plain_depthwise(input, weight, bias, *window)
        if output is NotImplemented:
            raise DeclinedError
        ctx.window = window
        ctx.save_for_backward(input, weight)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        mask = ctx.needs_input_grad[:3]
        input, weight = ctx.saved_tensors
        if not _grad_enabled() and not reference_forced():
            gradients = _kernel_backward(grad_output, input, weight, *ctx.window, *mask)
            if gradients is not NotImplemented:
                count_kernel(_NAME_BACKWARD)
                return (*gradients, None, None, None)
        count_reference(_NAME_BACKWARD)
        stride, padding, dilation = map(pair, ctx.window)
        window = (stride, padding, weight.shape[0], mask, dilation)
        return (*_reference_backward(grad_output, input, weight, *window), None, None, None)


_apply = base_apply(DepthwiseConv2d)
_operator = ConvolutionOperator(
    _NAME,
    ", SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation",
    lambda weight, stride, padding, dilation: (stride, padding, weight.shape[0], dilation),
    _core.plain_depthwise,
    _core.plain_depthwise_backward,
)
_DTYPES = (torch.float32, torch.float64, *HALVES)
_SIDES = (1, 3, 5, 7, 9)


def _kernel_backward(grad_output: Tensor, *arguments: Any) -> Any:
    """The gradients of input, weight and bias that are wanted, or NotImplemented.

    Args: arguments: input, weight, stride, padding, dilation, and whether each gradient is wanted.
    """
    gradients = _core.plain_depthwise_backward(grad_output, *arguments)
    if gradients is NotImplemented and plain_cpu((grad_output,)):
        dense = grad_output.contiguous(memory_format=torch.channels_last)
        gradients = _core.plain_depthwise_backward(dense, *arguments)
    return gradients


def _reference_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *window: Any
) -> tuple[Tensor | None, ...]:
    """As `_kernel_backward` by torch, of 16 bits in float32: autograd rounds them. Differentiable."""
    if input.dtype not in HALVES:
        return library_backward(grad_output, input, weight, *window)
    with without_autocast():
        return library_backward(grad_output.float(), input.float(), weight.float(), *window)


def depthwise_wins() -> bool:
    """True if the kernels have vectors as wide as the convolution library's."""
    return _core.depthwise_leads()


@constant_in_graphs
def _wins_as_constant() -> bool:
    return depthwise_wins()


def _is_recorded(input: Any, weight: Any, stride: Any, padding: Any, dilation: Any) -> bool:
    """True if a graph should contain the operator: the kernels support the call, as far as a graph's sizes show."""
    if not (seen_by_tracer() and isinstance(input, Tensor) and isinstance(weight, Tensor)):
        return False
    if torch.is_autocast_enabled("cpu") or input.dim() != 4 or weight.dim() != 4 or not input.is_cpu:
        return False
    if input.dtype not in _DTYPES or weight.dtype is not input.dtype or input.layout is not torch.strided:
        return False
    taps, groups = tuple(weight.shape[2:]), weight.shape[0]
    options = takes_window(taps, stride, dilation)
    options = options and padding_numbers(padding, taps, stride, dilation) is not None
    fits = weight.shape[1] == 1 and groups == input.shape[1] and groups >= FEWEST_CHANNELS
    return options and fits and input.stride(1) == 1 and _wins_as_constant()


def takes_window(taps: Any, stride: Any, dilation: Any) -> bool:
    """True if the kernels have this window. Args: taps: (kH, kW); a module may hold anything that a user assigned."""
    if not isinstance(taps, (tuple, list)) or len(taps) != 2 or tuple(taps) == (1, 1):
        return False
    if taps[0] not in _SIDES or taps[1] not in _SIDES:
        return False
    if not isinstance(stride, (int, tuple, list)) or not isinstance(dilation, (int, tuple, list)):
        return False  # a number of NumPy: compared with tuples it is an array
    if stride in (2, (2, 2), [2, 2]):
        return dilation in (1, (1, 1), [1, 1])
    steps = tuple(dilation) if isinstance(dilation, (tuple, list)) else (dilation,)
    return stride in (1, (1, 1), [1, 1]) and len(set(steps)) == 1 and len(steps) <= 2


def is_depthwise(module: nn.Conv2d) -> bool:
    """True for a convolution that the kernels support, by its options alone, independent of its input."""
    if not module.groups == module.in_channels == module.out_channels or module.padding_mode != "zeros":
        return False
    window = taps_of(module), module.stride, module.dilation
    return takes_window(*window) and _zeros(module.padding, *window) is not None


def _zeros(padding: Any, taps: Sequence[int], stride: Pair, dilation: Pair) -> Any:
    """The padding as the kernels read it; None for a text that means an error, or another number at either side."""
    return padding_numbers(padding, taps, stride, dilation) if isinstance(padding, str) else padding


def _is_copied(input: Any, weight: Any) -> bool:
    """True for images of which torch's convolution makes a copy in channels_last too: a slice of the channels of such,
    and contiguous ones if the weight is in channels_last."""
    if not isinstance(input, Tensor) or not plain_cpu((input,)) or input.dim() != 4:
        return False
    _, channels, height, width = input.shape
    steps = input.stride()
    if steps[1] != 1 and input.is_contiguous():
        return plain_cpu((weight,)) and suggest_memory_format(weight) is torch.channels_last
    if steps[1] != 1 or channels < 2 or steps == (height * width * channels, 1, width * channels, channels):
        return False
    return steps[3] >= channels and steps[2] >= width * steps[3] and steps[0] >= height * steps[2]


def _read_alike(input: Any, weight: Any) -> bool:
    """True if torch's convolution gives both one dtype, which the kernels read: theirs, or autocast's for an input
    beside a weight in float32."""
    if not isinstance(input, Tensor) or not isinstance(weight, Tensor):
        return False
    if input.dtype is torch.float64 or not _is_autocast("cpu"):
        return input.dtype is weight.dtype
    dtype = torch.get_autocast_dtype("cpu")
    return dtype in HALVES and weight.dtype in (torch.float32, dtype) and input.dtype in _DTYPES


def _supports(input: Any, weight: Any, bias: Any, *window: Any) -> bool:
    """True if the kernels support these arguments, or a copy of the input that torch makes too."""
    if not _read_alike(input, weight):
        return False
    if _core.depthwise_fits(input, weight, bias, *window):
        return True
    if not _is_copied(input, weight):
        return False
    like = torch.empty_like(input, memory_format=torch.channels_last, requires_grad=False)
    return _core.depthwise_fits(like, weight, bias, *window)


def depthwise_able(module: nn.Conv2d, input: Tensor) -> bool:
    """True if `depthwise_conv2d` would run its kernels for this module's parameters, options and input.

    Cheap: one call of the extension. False while torch.compile traces, under modes and transforms, and if the kernels
    are not known to be as fast as torch's.
    """
    return (
        not _compiling()
        and not reference_forced()
        and "_conv_forward" not in module.__dict__
        and is_depthwise(module)
        and _supports(
            input,
            module.weight,
            module.bias,
            module.stride,
            _zeros(module.padding, taps_of(module), module.stride, module.dilation),
            module.dilation,
        )
        and not _is_slower(input, module.weight)
    )


def _is_slower(input: Tensor, weight: Tensor) -> bool:
    """True for windows of one row of 3 to 7 taps over large inputs if no gradient is needed: with AVX-512, on Zen 5,
    torch's forward takes 0.85 to 0.98 of the time of the kernel's there, its step 1.6 to 4 times. With AVX2 torch's
    takes 1.1 to 1.3 times as long too."""
    if weight.shape[2] != 1 or weight.shape[3] > 7 or input.numel() < _LARGE_ROWS:
        return False
    if _core.isa_current() != "avx512":
        return False
    return not (records_graphs() and (input.requires_grad or weight.requires_grad))


def depthwise_fits(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Pair,
    padding: Pair | str,
    dilation: Pair,
    groups: int,
) -> bool:
    """`depthwise_able` for a call of torch.nn.functional.conv2d with as many groups as channels."""
    if _compiling() or reference_forced() or not isinstance(weight, Tensor) or weight.dim() != 4:
        return False
    zeros = _zeros(padding, weight.shape[2:], stride, dilation)
    fits = weight.shape[0] == groups and _supports(input, weight, bias, stride, zeros, dilation)
    return fits and not _is_slower(input, weight)


def _try_kernel(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """The output by the kernel, recorded for autograd if need be; NotImplemented if it does not support the call."""
    try:
        cast = _is_autocast("cpu") and input.dtype is not torch.float64
        if not cast and input.dtype is not weight.dtype:
            return NotImplemented
        records = needs_graph((input, weight, bias))
        if records and (_transforms() or _is_tracing()):  # from which a Function would hide what it calls
            return NotImplemented
        if cast:
            if not _read_alike(input, weight):
                return NotImplemented
            if not _core.depthwise_fits(input, weight, bias, stride, padding, dilation):
                return NotImplemented  # before a conversion in vain
            input = input.to(torch.get_autocast_dtype("cpu"))
            if records and weight.dtype is not input.dtype:
                weight = weight.clone()  # as the copy that autocast makes, it may change before the backward
        run = _apply if records else _core.plain_depthwise
        return run(input, weight, bias, stride, padding, dilation)
    except (DeclinedError, AttributeError):
        return NotImplemented


def depthwise_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
) -> Tensor:
    """Convolve every channel with its own taps, as torch.nn.functional.conv2d with groups=C.

    Args:
        input: (N, C, H, W). The kernels support channels_last float32, float64, bfloat16 and float16 on the CPU, eight
            channels at least, if the tier in use is avx2 or avx512. Those of 16 bits are summed in float32, and rounded
            once. A slice of more channels, and contiguous images beside a weight in channels_last, are copied first, as
            torch's convolution does.
        weight: (C, 1, kH, kW). The kernels support 1, 3, 5, 7 and 9 in each direction, but not 1 x 1.
        bias: (C,), or None.
        stride: the kernels support 1 and 2, the same in both directions.
        padding: of zeros, any; or "same" or "valid".
        dilation: the kernels support any, the same in both directions, with stride 1.

    Everything that the kernels do not support, channels of several outputs, other devices and calls under torch.func
    or torch.jit.trace run torch's own convolution. torch.compile, torch.export and make_fx record
    `opswap::depthwise_conv2d`.

    Returns: (N, C, H', W') in the memory format that torch gives it; under autocast in its dtype, parameters in float32
        are then not rounded to 16 bits, and their gradients are float32. The sums of the gradient of weight and bias do
        not depend on the number of threads.

    Raises: as torch.nn.functional.conv2d.

    Source: torch.nn.functional.conv2d.
    """
    if not _compiling() and not reference_forced():
        if isinstance(padding, str) and plain_cpu((weight,)) and weight.dim() == 4:
            padding = padding_numbers(padding, weight.shape[2:], stride, dilation) or padding
        output = _try_kernel(input, weight, bias, stride, padding, dilation)
        if output is NotImplemented and _is_copied(input, weight):
            dense = input.contiguous(memory_format=torch.channels_last)
            output = _try_kernel(dense, weight, bias, stride, padding, dilation)
        if output is not NotImplemented:
            count_kernel(_NAME)
            return output
    if _is_recorded(input, weight, stride, padding, dilation):
        numbers = padding_numbers(padding, weight.shape[2:], stride, dilation)
        return _operator(input, weight, bias, pair(stride), numbers, pair(dilation))
    if not _compiling():
        count_reference(_NAME)
    groups = 1
    if isinstance(input, Tensor) and input.dim() > 2:
        groups = concrete_size(input)[-3]
    return torch_functional.conv2d(input, weight, bias, stride, padding, dilation, groups)
