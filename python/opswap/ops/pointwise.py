# SPDX-License-Identifier: MIT
"""Convolutions with a 1 x 1 kernel, as one linear map of all pixels or of planes.

A tensor (N, C, H, W) in channels_last is a matrix of N * H * W rows of C channels. The kernels of the grouped linear
map read it in place; the convolution library pads channels that are not a multiple of its vectors, such as the 58 and
116 of ShuffleNetV2. With a stride the rows are every s-th pixel of a line, of every s-th line: the kernels read and
write them in place. Each image of a contiguous tensor is a matrix of C planes, the factor of a product with the weight:
the library puts contiguous tensors into another order before, and back. Everything else is torch's own convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from opswap import _core
from opswap._torch import constant_in_graphs, functorch_active

from ._convolution import (
    Pair,
    gives_channels_last,
    gradient_overruns,
    is_one,
    library_backward,
    pair,
    strided_conv2d,
    taps_of,
)
from ._convolution_operator import ConvolutionOperator
from ._function import (
    DeclinedError,
    base_apply,
    concrete_size,
    needs_graph,
    plain_cpu,
    seen_by_tracer,
    tracing,
)
from ._layout import suggest_memory_format
from ._stats import count_kernel, count_reference, reference_forced

__all__ = [
    "FEW_WEIGHTS",
    "is_pointwise",
    "module_overruns",
    "pointwise_conv2d",
    "pointwise_fits",
    "pointwise_pays",
    "pointwise_wins",
    "takes_pixels",
]

_NAME = "pointwise_conv2d"
_NAME_BACKWARD = f"{_NAME}_backward"
_DTYPES = (torch.float32, torch.float64)
_compiling = torch.compiler.is_dynamo_compiling
_autocast = torch.is_autocast_enabled
_grad_enabled = torch.is_grad_enabled
_is_tracing = torch.jit.is_tracing
_transforms = functorch_active

# Elements of a weight from which on the convolution library is as fast or faster: it has little left to pad there.
FEW_WEIGHTS = 1 << 17
# Pixels of all outputs for which that is not so: measured on Zen 5, 1.5 to 3.6 times as fast as the library up to 400,
# whose weights are put into another order in every call, and as fast up to 2000. There is no limit with one pixel per
# image, for each of which the library reads the whole weight: measured on an Intel Xeon, 1.6 to 10 times; on Zen 4,
# 1.8 to 4.7 and, limited to AVX2, 1.7 to 4.2.
_FEW_PIXELS = range(8, 2049)
# Of contiguous images, pixels of one from which on the kernels are faster whatever the weight, measured on Zen 4: 0.97
# to 1.5 times as fast; of smaller ones, pixels of all up to which they are: 1.1 to 1.9, and 0.85 from 784 on.
_WHOLE_PIXELS, _JOINED_PIXELS = 64, 512


def pointwise_wins() -> bool:
    """True if the kernels have vectors as wide as the convolution library's."""
    return _core.linear_leads()


def pointwise_pays(weights: int, output: Sequence[int]) -> bool:
    """True if the kernels were measured as fast as the library or faster.

    Args: weights: elements of the weight. output: its size (N, H, W), without channels.
    """
    if weights < FEW_WEIGHTS:
        return True
    batch, height, width = output
    if height * width == 1:
        return batch >= _FEW_PIXELS.start
    return batch * height * width in _FEW_PIXELS


@constant_in_graphs
def _wins_as_constant() -> bool:
    return pointwise_wins()


def is_pointwise(module: nn.Conv2d) -> bool:
    """True for a convolution that is one map of pixels: 1 x 1, no padding, one group."""
    padding = module.padding
    plain = isinstance(padding, (tuple, str)) and padding in ((0, 0), "valid", "same")
    return plain and taps_of(module) == (1, 1) and module.groups == 1


def takes_pixels(module: nn.Conv2d, input: Any) -> bool:
    """True if the kernels compute this convolution: on the CPU, without autocast or trace, in channels_last, or in
    planes without a stride."""
    if _compiling() or not isinstance(input, Tensor) or "_conv_forward" in module.__dict__:
        return False
    return is_pointwise(module) and _reads(input, module._parameters.get("weight"), module.stride)


def module_overruns(module: nn.Conv2d, input: Any) -> bool:
    """`gradient_overruns` for the weight and the options of a module."""
    if "_conv_forward" in module.__dict__ or not is_pointwise(module):
        return False
    parameters = module._parameters
    return gradient_overruns(input, parameters.get("weight"), parameters.get("bias"), module.stride)


def pointwise_fits(input: Any, weight: Any, stride: Any) -> bool:
    """`takes_pixels` for a call of torch.nn.functional.conv2d without padding and with one group."""
    if _compiling() or not isinstance(input, Tensor) or not isinstance(weight, Tensor):
        return False
    return weight.dim() == 4 and weight.shape[2] == weight.shape[3] == 1 and _reads(input, weight, stride)


def _has_planes(input: Tensor, weight: Tensor | None, stride: Any) -> bool:
    """True if the kernels for planes compute a 1 x 1 convolution of these images and were measured faster.

    That is one without a stride, of images whose pixels lie one after another in each plane, slices of more channels
    included. As torch's, the output is contiguous, or in channels_last if the weight is.
    """
    if type(input) is not Tensor:  # a fake one, whose sizes may be open, among others
        return False
    columns, (_, plane, row, pixel) = input.shape[3], input.stride()
    if pixel != 1 or row != columns or plane == 1 or type(stride) not in (int, tuple, list) or weight is None:
        return False
    return is_one(stride) and (weight.numel() < FEW_WEIGHTS or _planes_pay(input, weight))


def _planes_pay(input: Tensor, weight: Tensor) -> bool:
    """The same for a weight of FEW_WEIGHTS elements or more."""
    images, _, height, width = input.shape
    if suggest_memory_format(weight) is torch.channels_last:
        return pointwise_pays(weight.numel(), (images, height, width))
    return height * width >= _WHOLE_PIXELS or images * height * width <= _JOINED_PIXELS


def _reads(input: Tensor, weight: Tensor | None, stride: Any) -> bool:
    return _is_candidate(input) and (input.stride(1) == 1 or _has_planes(input, weight, stride))


def _is_candidate(input: Tensor) -> bool:
    if _autocast("cpu") or input.dim() != 4 or input.dtype not in _DTYPES or not input.is_cpu:
        return False
    return input.layout is torch.strided and not input.is_nested


class PointwiseConv2d(Function):
    """The kernels' path: ordinary tensors, nothing but autograd watching."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair) -> Tensor:
        output = _core.plain_pointwise(input, weight, bias, stride)
        if output is NotImplemented:
            raise DeclinedError
        ctx.stride = stride
        ctx.save_for_backward(input, weight)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        stride, mask = ctx.stride, ctx.needs_input_grad[:3]
        if not _grad_enabled() and not _compiling() and not reference_forced():
            gradients = _core.plain_pointwise_backward(grad_output, input, weight, stride, *mask)
            if gradients is NotImplemented and plain_cpu((grad_output, input, weight)):
                last = gives_channels_last(input, weight)
                dense = grad_output.contiguous(
                    memory_format=torch.channels_last if last else torch.contiguous_format
                )
                gradients = _core.plain_pointwise_backward(dense, input, weight, stride, *mask)
            if gradients is not NotImplemented:
                count_kernel(_NAME_BACKWARD)
                return *gradients, None
        count_reference(_NAME_BACKWARD)
        return *library_backward(grad_output, input, weight, pair(stride), (0, 0), 1, mask), None


_apply = base_apply(PointwiseConv2d)
_operator = ConvolutionOperator(
    _NAME,
    ", SymInt[2] stride",
    lambda weight, stride: (stride, (0, 0), 1, (1, 1)),
    _core.plain_pointwise,
    _core.plain_pointwise_backward,
)


def _try_kernel(input: Any, weight: Any, bias: Any, stride: Pair) -> Any:
    """The output, or NotImplemented if the kernels do not support the call, which they find out themselves."""
    if _compiling() or reference_forced() or _is_tracing():  # whose graph would contain a look at sizes
        return NotImplemented
    try:
        if weight.numel() >= FEW_WEIGHTS and not (
            plain_cpu((input, weight)) and _reads(input, weight, stride)
        ):
            return NotImplemented
        if not needs_graph((input, weight, bias)):
            return _core.plain_pointwise(input, weight, bias, stride)
        if _transforms():  # from which a Function would hide what it calls
            return NotImplemented
        return _apply(input, weight, bias, stride)
    except (DeclinedError, AttributeError):
        return NotImplemented


def _is_recorded(input: Tensor, weight: Tensor, stride: Any) -> bool:
    """True if the operator is recorded in a graph."""
    if not seen_by_tracer() or not _is_candidate(input) or weight.dtype is not input.dtype:
        return False
    if input.stride(1) != 1:
        return False
    steps = pair(stride)
    return len(steps) == 2 and min(steps) > 0 and _wins_as_constant()


def pointwise_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1) -> Tensor:
    """Convolve with a kernel of 1 x 1: output[n, :, i, j] = weight @ input[n, :, i * sh, j * sw] + bias.

    Args:
        input: (N, C, H, W) or (C, H, W). The kernels support float32 and float64, slices of more channels included, if
            the tier in use is avx2 or avx512: in channels_last, and contiguous without a stride, but for many small
            images beside a weight of 131,072 elements or more. Everything else, autocast, torch.func and
            torch.jit.trace run torch's operator. torch.compile, torch.export and make_fx record
            `opswap::pointwise_conv2d` in channels_last.
        weight: (out, C, 1, 1).
        bias: (out,) or None.
        stride: (sh, sw), or one number for both.

    Returns: (N, out, H', W') with H' = (H - 1) // sh + 1, in channels_last if the input or the weight is, as
        torch.nn.functional.conv2d. Sums are taken in the dtype, in an order that depends on the sizes alone.

    Raises: as torch.nn.functional.conv2d; RuntimeError for a weight whose kernel is not 1 x 1.

    Source: torch.nn.functional.conv2d; Lin et al., "Network in Network", ICLR 2014.
    """
    output = _try_kernel(input, weight, bias, stride)
    if output is not NotImplemented:
        count_kernel(_NAME)
        return output
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(pointwise_conv2d, tensors, input, weight, bias, stride)
    if not all(isinstance(t, Tensor) for t in tensors):
        return torch_functional.conv2d(input, weight, bias, stride)  # and the error is torch's
    size = concrete_size(weight)
    if size[2:] != (1, 1):
        raise RuntimeError(f"{_NAME}: weight must be (out, in, 1, 1), got {tuple(size)}")
    if tracing():
        return torch_functional.conv2d(input, weight, bias, stride)
    if _is_recorded(input, weight, stride):
        return _operator(input, weight, bias, pair(stride))
    if not torch.compiler.is_compiling():
        count_reference(_NAME)
    return strided_conv2d(input, weight, bias, stride)
