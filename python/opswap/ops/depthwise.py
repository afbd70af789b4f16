# SPDX-License-Identifier: MIT
"""Depthwise convolution of channels_last images, forward and both gradients in one pass each.

torch's own library is slow with windows of 7 x 7 and more, and with a dilation. On CPUs without vectors there is
nothing to gain: there, and for everything else that the kernels do not support, torch's convolution runs. Images of 16
bits are read and written as they are, and summed in float32; under autocast weights in float32 are not rounded.

Contiguous images are put into channels_last and back around the kernels if that was measured as fast as torch's. The
images themselves are kept for the backward, which converts them again.

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

from ._convolution import BLOCK, HALVES, Pair, is_one, library_backward, padding_numbers, pair, taps_of
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
from ._planes import has_planes, to_pixels, to_planes
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
# Of planes, measured with AVX-512 on an Intel Xeon with AMX, one thread, conversions included. In float64 any size is
# 1.2 to 37 times as fast as torch's. In bfloat16 1.1 to 4.7 times without a graph, a step 1.3 to 25, and 0.95 to 22 if
# the input trains alone. In float32 with a dilation steps are 1.0 to 12 times as fast; with rows of so many taps and a
# weight that trains 1.7 to 11: torch's gradient of the weight is slow there.
_WIDE_TAPS = 5
# Elements of the input of other windows in float32. In a loop (1, 384, 14, 14) is 1.7 times as fast without a graph,
# 1.2 in a step; from twice as many on 0.7 to 1.0 and 0.8 to 1.1. Twice as many if torch's library fills blocks of
# channels, as (4, 58, 28, 28), 1.5 and 1.2, or with a stride, as (1, 192, 28, 28), 1.8 and 1.1; three times as many
# with windows of one row or column, 1.1 to 1.4 and 1.1 to 3. Half as many if one of input and weight trains alone:
# (1, 58, 28, 28) 1.2 and 1.7, (2, 384, 14, 14) 0.7 and 0.8. With AVX2 3 x 3 and 5 x 5 are 0.9 to 7 times as fast.
# Between the operators of a network less is gained, so that the limit is half of what loops show, and a quarter of it
# without a graph: a call of EfficientNet-B0 on an image of 224 pixels then takes 0.98 of the time, on one of 96 0.8.
_MOST_PLANES = 1 << 16
_LARGE_ROWS = 1 << 20  # elements: of 480 x 7 x 7 and 32 images 1.0 times as fast, of 240 x 14 x 14 0.97


class DepthwiseConv2d(Function):
    """For ordinary eager tensors; everything else is torch's."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, window: tuple[Any, ...]
    ) -> Tensor:
        output = _core.plain_depthwise(input, weight, bias, *window)
        if output is NotImplemented and has_planes(input):
            output = _of_planes(input, weight, bias, *window)
        if output is NotImplemented:
            raise DeclinedError
        ctx.window = window
        ctx.save_for_backward(input, weight)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        mask = ctx.needs_input_grad[:3]
        input, weight = ctx.saved_tensors
        if not _grad_enabled() and not _compiling() and not reference_forced():
            arguments = (grad_output, input, weight, *ctx.window, *mask)
            gradients = _core.plain_depthwise_backward(*arguments)
            if gradients is NotImplemented:
                gradients = _converted_backward(*arguments)
            if gradients is not NotImplemented:
                count_kernel(_NAME_BACKWARD)
                return *gradients, None
        count_reference(_NAME_BACKWARD)
        stride, padding, dilation = map(pair, ctx.window)
        window = (stride, padding, weight.shape[0], mask, dilation)
        return *_reference_backward(grad_output, input, weight, *window), None


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


def _of_planes(input: Tensor, weight: Tensor, bias: Tensor | None, *window: Any) -> Any:
    """`_core.plain_depthwise` of contiguous images, and slices of their channels.

    Of large ones in float32 torch's forward is faster, 1.1 to 1.5 times as fast on an Intel Xeon: the kernels compute
    their gradients alone.
    """
    if input.dtype is torch.float32 and input.numel() > _most_elements(input, weight, window[0], False):
        return torch_functional.conv2d(input, weight, bias, *window, input.shape[1])
    output = _core.plain_depthwise(to_pixels(input), weight, bias, *window)
    return output if output is NotImplemented else to_planes(output)


def _converted_backward(grad_output: Tensor, input: Tensor, *arguments: Any) -> Any:
    """`_core.plain_depthwise_backward` of tensors that are put into channels_last.

    Args: arguments: weight, stride, padding, dilation, and whether each gradient is wanted.
    """
    if not plain_cpu((grad_output,)):
        return NotImplemented
    planes = has_planes(input)
    if planes:
        input = to_pixels(input)
    gradients = _core.plain_depthwise_backward(to_pixels(grad_output), input, *arguments)
    if gradients is NotImplemented or gradients[0] is None or not planes:
        return gradients
    grad_input, *others = gradients
    return (to_planes(grad_input), *others)


def _reference_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, *window: Any
) -> tuple[Tensor | None, ...]:
    """The same by torch, of 16 bits in float32: autograd rounds them. Differentiable."""
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


def _format_of_copy(input: Any, weight: Any, stride: Any, dilation: Any) -> torch.memory_format | None:
    """The memory format of the output for images that are put into channels_last for the kernels; None for others.

    channels_last for those of which torch's convolution makes a copy too: slices of the channels of such images, and
    planes beside a weight in channels_last. Contiguous for other planes, if the conversions pay.
    """
    if (
        not isinstance(input, Tensor)
        or not plain_cpu((input, weight))
        or not input.dim() == weight.dim() == 4
    ):
        return None
    _, channels, height, width = input.shape
    images, channel, row, pixel = input.stride()
    if channel != 1:
        if not _are_planes(input):
            return None
        if weight.stride(1) == 1 and suggest_memory_format(weight) is torch.channels_last:
            return torch.channels_last
        return torch.contiguous_format if _planes_pay(input, weight, stride, dilation) else None
    if channels < 2 or (images, row, pixel) == (height * width * channels, width * channels, channels):
        return None
    copied = pixel >= channels and row >= width * pixel and images >= height * row
    return torch.channels_last if copied else None


def _are_planes(input: Tensor) -> bool:
    """True for contiguous images and slices of their channels: planes of several pixels, one after another."""
    batch, channels, height, width = input.shape
    images, *steps = input.stride()
    plane = height * width
    return plane > 1 and steps == [plane, width, 1] and (batch < 2 or images >= channels * plane)


def _planes_pay(input: Tensor, weight: Tensor, stride: Any, dilation: Any) -> bool:
    """True if the kernels were measured as fast as torch's convolution of planes, conversions included."""
    if input.shape[1] < FEWEST_CHANNELS:
        return False
    if input.dtype is not torch.float32 or _is_autocast("cpu"):
        return True
    records = records_graphs()
    of_input, of_weight = records and input.requires_grad, records and weight.requires_grad
    if (of_weight and weight.shape[3] >= _WIDE_TAPS) or ((of_input or of_weight) and not is_one(dilation)):
        return True
    return input.numel() <= _most_elements(input, weight, stride, of_input and of_weight)


def _most_elements(input: Tensor, weight: Tensor, stride: Any, both_train: bool) -> int:
    """Elements of an input in float32 up to which windows that are not wide are as fast on planes."""
    most = _MOST_PLANES
    if not both_train:
        most //= 2
    elif 1 in weight.shape[2:]:
        most *= 3
    if not is_one(stride):
        most *= 2
    return most * 2 if input.shape[1] % BLOCK else most


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
    """True if the kernels support these arguments, or a copy of the input that torch makes too or that pays."""
    if not _read_alike(input, weight):
        return False
    if _core.depthwise_fits(input, weight, bias, *window):
        return True
    stride, _, dilation = window
    if _format_of_copy(input, weight, stride, dilation) is None:
        return False
    return _core.depthwise_fits_but_for_format(input, weight, bias, *window)


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


def _try_kernel(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, planes: bool = False
) -> Any:
    """The output by the kernel, recorded for autograd if need be; NotImplemented if it does not support the call.

    planes: whether the input is put into channels_last, and the output back.
    """
    try:
        cast = _is_autocast("cpu") and input.dtype is not torch.float64
        if not cast and input.dtype is not weight.dtype:
            return NotImplemented
        records = needs_graph((input, weight, bias))
        if records and (_transforms() or _is_tracing()):  # from which a Function would hide what it calls
            return NotImplemented
        if records and not planes and has_planes(input):  # which the Function would convert
            return NotImplemented
        if cast and not _read_alike(input, weight):
            return NotImplemented
        if cast or planes:
            fits = _core.depthwise_fits_but_for_format if planes else _core.depthwise_fits
            if not fits(input, weight, bias, stride, padding, dilation):
                return NotImplemented  # before a conversion in vain
        if cast:
            input = input.to(torch.get_autocast_dtype("cpu"))
            if records and weight.dtype is not input.dtype:
                weight = weight.clone()  # as the copy that autocast makes, it may change before the backward
        if records:
            return _apply(input, weight, bias, (stride, padding, dilation))
        run = _of_planes if planes else _core.plain_depthwise
        return run(input, weight, bias, stride, padding, dilation)
    except (DeclinedError, AttributeError):
        return NotImplemented


def _try_copy(input: Any, weight: Any, *arguments: Any) -> Any:
    """`_try_kernel` of a copy in channels_last, if there is one. Args: arguments: bias, stride, padding, dilation."""
    memory_format = _format_of_copy(input, weight, arguments[1], arguments[3])
    if memory_format is torch.channels_last:
        return _try_kernel(input.contiguous(memory_format=memory_format), weight, *arguments)
    return NotImplemented if memory_format is None else _try_kernel(input, weight, *arguments, True)


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
            torch's convolution does. Other contiguous images, and slices of their channels, are converted and the
            output converted back: in float32 if they are small, or if a gradient is needed that torch computes slowly
            (the forward of large ones is torch's then).
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
        if output is NotImplemented:
            output = _try_copy(input, weight, bias, stride, padding, dilation)
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
