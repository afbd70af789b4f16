# SPDX-License-Identifier: MIT
"""Convolutions and linear maps of bfloat16 and float16 tensors, computed in float32 if that is faster on this CPU.

torch's library has convolutions in 16 bits for CPUs with instructions for them (AVX512-BF16, AVX512-FP16, AMX). On
other CPUs torch converts and multiplies one image after the other, which takes ten times as long as in float32. Here
the tensors of a call are converted to float32, and the sums are rounded once, to 16 bits. What is kept for the backward
stays in 16 bits.
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
from opswap._torch import functorch_active, half_instructions

from ._convolution import HALVES, Pair, is_one, library_backward, padding_numbers, pair
from ._derivatives import read_by_gradients
from ._function import base_apply, needs_graph, plain_eager, tracing, without_autocast
from ._stats import count_kernel, count_reference, reference_forced
from .conv import dense_conv2d, faster_gradients, recorded_conv2d
from .depthwise import depthwise_conv2d, depthwise_fits
from .pointwise import FEW_WEIGHTS, pointwise_conv2d

__all__ = [
    "conv2d",
    "depthwise_or_float32",
    "float32_able",
    "linear",
    "output_dtype",
    "pointwise_or_float32",
    "slow_dtype",
]

_CASTS = (torch.float32, *HALVES)  # what autocast converts
_compiling = torch.compiler.is_compiling
_is_autocast = torch.is_autocast_enabled

_INSTRUCTIONS = half_instructions()
# The dtypes whose convolutions and products are slower than those of float32 here; of depthwise convolutions with a
# stride that no kernel supports these are all, since torch's library computes their gradient of the input in ten times
# as long.
SLOW = frozenset[torch.dtype]() if _INSTRUCTIONS is None else frozenset(HALVES) - _INSTRUCTIONS
SLOW_DEPTHWISE = frozenset[torch.dtype]() if _INSTRUCTIONS is None else frozenset(HALVES)


def slow_dtype(dtype: torch.dtype, depthwise_stride: bool = False) -> bool:
    """True for a dtype of 16 bits that torch's library computes slower than float32 on this CPU.

    depthwise_stride: of a depthwise convolution with a stride.
    """
    return dtype in SLOW or (depthwise_stride and dtype in SLOW_DEPTHWISE)


def output_dtype(tensors: Sequence[Tensor], depthwise_stride: bool = False) -> torch.dtype | None:
    """The dtype of 16 bits that torch gives an operator of these tensors; None if it is not one that is slow here.

    Under autocast that is autocast's dtype, else the dtype that all tensors have.
    """
    if _is_autocast("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        if not slow_dtype(dtype, depthwise_stride):
            return None
        for t in tensors:
            if t.dtype not in _CASTS or not t.is_cpu:
                return None
        return dtype
    dtype = tensors[0].dtype
    if not slow_dtype(dtype, depthwise_stride):
        return None
    for t in tensors:
        if t.dtype is not dtype or not t.is_cpu:
            return None
    return dtype


def _is_slow(input: Any, weight: Any, bias: Any, stride: Pair = 1, groups: int = 1) -> bool:
    """True in 16 bits, or under autocast to them, if `conv2d` computes this in float32 here.

    Not under transforms, where autocast does not reach.
    """
    if not isinstance(input, Tensor) or not (_is_autocast("cpu") or input.dtype in HALVES):
        return False
    if not isinstance(weight, Tensor) or not isinstance(bias, (Tensor, type(None))) or functorch_active():
        return False
    strided = _is_strided_depthwise(input, weight, stride, groups)
    return output_dtype((input, weight) if bias is None else (input, weight, bias), strided) is not None


def float32_able(module: nn.Conv2d, input: Any) -> bool:
    """True for an input of 16 bits, or under autocast to them, if they are slow here: `conv2d` computes this module in
    float32. Of modules with one group, or one of each channel of the output."""
    if not isinstance(input, Tensor) or not (_is_autocast("cpu") or input.dtype in HALVES):
        return False
    if module.padding_mode != "zeros" or "_conv_forward" in module.__dict__:
        return False
    weight = module._parameters.get("weight")  # one that is made at each read stays torch's
    if weight is None or weight.dim() != 4 or module.groups not in (1, weight.shape[0]):
        return False
    return _is_slow(input, weight, module.bias, module.stride, module.groups)


def pointwise_or_float32(input: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair) -> Tensor:
    """`pointwise_conv2d`; of a module that is `float32_able`, `conv2d`."""
    if _is_slow(input, weight, bias):
        return conv2d(input, weight, bias, stride)
    return pointwise_conv2d(input, weight, bias, stride)


def depthwise_or_float32(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair | str, dilation: Pair
) -> Tensor:
    """`depthwise_conv2d`; of a module that is `float32_able`, `conv2d`."""
    if _is_slow(input, weight, bias, stride, weight.shape[0]):
        return conv2d(input, weight, bias, stride, padding, dilation, weight.shape[0])
    return depthwise_conv2d(input, weight, bias, stride, padding, dilation)


def _float(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.float()


def _kept(tensors: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Tensors for a graph: copies of those that autocast to `dtype` copies too, so that they may change meanwhile.

    A copy is also what may be kept of a tensor of the inference mode.
    """
    first, second = [t if t.dtype is dtype else t.clone() for t in tensors]
    return first, second


class _Window:
    """How a convolution moves over its input: pairs of numbers, and the number of groups."""

    __slots__ = ("dilation", "groups", "padding", "stride")
    spares = False

    def __init__(self, stride: Pair, padding: Sequence[int], dilation: Pair, groups: int) -> None:
        self.stride, self.padding = pair(stride), padding
        self.dilation, self.groups = pair(dilation), groups

    def forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """In float32, by a kernel if there is one."""
        output = NotImplemented
        if self._is_pointwise(weight):
            output = _core.plain_pointwise(input, weight, bias, self.stride)
        if output is NotImplemented:
            output = torch_functional.conv2d(
                input, weight, bias, self.stride, self.padding, self.dilation, self.groups
            )
        return output

    def backward(
        self, grad_output: Tensor, input: Tensor, weight: Tensor, mask: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """The gradients of input, weight and bias in float32. Differentiable if a graph is needed."""
        tensors = (grad_output, input.float(), weight.float())
        gradients = NotImplemented
        if plain_eager() and not needs_graph(tensors):
            if self._is_pointwise(weight):
                gradients = _core.plain_pointwise_backward(*tensors, self.stride, *mask)
            elif self.groups == 1:
                gradients = faster_gradients(*tensors, (self.stride, list(self.padding), self.dilation), mask)
        if gradients is NotImplemented:
            window = (self.stride, self.padding, self.groups)
            gradients = library_backward(*tensors, *window, mask, self.dilation)
        return gradients

    def _is_pointwise(self, weight: Tensor) -> bool:
        window = (list(self.padding), self.groups)
        return window == ([0, 0], 1) and weight.shape[2:] == (1, 1) and weight.numel() < FEW_WEIGHTS


class _Product:
    """A linear map, with the methods of a `_Window`."""

    spares = True

    def forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch_functional.linear(input, weight, bias)

    def backward(
        self, grad_output: Tensor, input: Any, weight: Any, mask: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Reads the input for the gradient of the weight only, and the weight for that of the input."""
        *lead, outputs = grad_output.shape
        rows = grad_output.reshape(-1, outputs)
        return (
            (rows @ weight.float()).view(*lead, weight.shape[1]) if mask[0] else None,
            rows.t() @ input.float().reshape(-1, input.shape[-1]) if mask[1] else None,
            rows.sum(0) if mask[2] else None,
        )


class Reduced(Function):
    """For calls that only autograd records. Keeps the tensors for the backward as they were given.

    As torch: of a linear map those that the gradients read, which the backward computes then; of a convolution both.
    autograd gives each gradient the dtype of its tensor.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: _Window | _Product,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.layer = layer
        both = input, weight
        ctx.save_for_backward(*(read_by_gradients(both, ctx.needs_input_grad) if layer.spares else both))
        with without_autocast():
            return layer.forward(input.float(), weight.float(), _float(bias)).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        with without_autocast():
            gradients = ctx.layer.backward(grad_output.float(), input, weight, ctx.needs_input_grad[:3])
        return *gradients, None, None


_apply = base_apply(Reduced)
_PRODUCT = _Product()


def _is_none(padding: Any, stride: Pair) -> bool:
    """True for a padding of zero of a 1 x 1 window, in numbers or words."""
    if isinstance(padding, str):
        return padding_numbers(padding, (1, 1), stride, 1) == [0, 0]
    return tuple(padding) == (0, 0) if isinstance(padding, (tuple, list)) else bool(padding == 0)


def _is_strided_depthwise(input: Tensor, weight: Tensor, stride: Any, groups: int) -> bool:
    return groups > 1 and not is_one(stride) and input.dim() == 4 and groups == weight.shape[0]


def _is_depthwise(input: Tensor, weight: Tensor, groups: int) -> bool:
    if input.dim() != 4 or weight.dim() != 4:
        return False
    return groups > 1 and groups == weight.shape[0] and groups == input.shape[1]


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve as torch.nn.functional.conv2d, by what is fastest here.

    Args:
        input: (N, C, H, W) or (C, H, W). On CPUs without instructions for them, bfloat16 and float16, under autocast
            too, are converted and computed in float32: the sums are rounded once to 16 bits. Depthwise ones in
            channels_last are left to `depthwise_conv2d`, 1x1 in float32 and float64 to `pointwise_conv2d`; of other
            dense convolutions kernels compute the output and each gradient if they were measured faster (tiers avx2 and
            avx512), in an order that depends on sizes and strides alone. Everything else is torch's.
        weight: (out, C / groups, kH, kW).
        bias: (out,), or None.
        stride, padding, dilation, groups: as torch.nn.functional.conv2d.

    Returns: (N, out, H', W') in the memory format that torch gives it. Under autocast in its dtype; parameters in
        float32 are then not rounded to 16 bits, and their gradients are float32.

    Raises: as torch.nn.functional.conv2d.

    Source: torch.nn.functional.conv2d.
    """
    tensors = (input, weight) if bias is None else (input, weight, bias)
    options = (stride, padding, dilation, groups)
    if has_torch_function(tensors):
        return handle_torch_function(conv2d, tensors, input, weight, bias, *options)
    if not all(isinstance(t, Tensor) for t in tensors) or tracing():
        return torch_functional.conv2d(input, weight, bias, *options)
    if groups == 1:
        recorded = recorded_conv2d(input, weight, bias, stride, padding, dilation)
        if recorded is not NotImplemented:
            return recorded
    if _exporting():
        return torch_functional.conv2d(input, weight, bias, *options)
    strided = _is_strided_depthwise(input, weight, stride, groups)
    dtype = None if reference_forced() else output_dtype(tensors, strided)
    if _is_depthwise(input, weight, groups) and (
        dtype is None or depthwise_fits(input, weight, bias, stride, padding, dilation, groups)
    ):
        return depthwise_conv2d(input, weight, bias, stride, padding, dilation)
    if dtype is not None:
        return _reduced_conv2d(tensors, options, dtype)
    if weight.dim() == 4 and not _is_autocast("cpu"):
        if groups == 1:
            output = dense_conv2d(input, weight, bias, stride, padding, dilation)
            if output is not NotImplemented:
                return output
        if weight.shape[2:] == (1, 1) and groups == 1 and _is_none(padding, stride):
            return pointwise_conv2d(input, weight, bias, stride)
    if not _compiling():
        count_reference("conv2d")
    return torch_functional.conv2d(input, weight, bias, *options)


def _exporting() -> bool:
    return torch.compiler.is_exporting()


def _computed(layer: _Window | _Product, tensors: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """What the layer makes of input, weight and bias, recorded for autograd if need be."""
    input, weight, bias = (*tensors, None)[:3]
    if needs_graph(tensors):
        input, weight = _kept((input, weight), dtype)
        return _apply(input, weight, bias, layer, dtype)
    with without_autocast():
        return layer.forward(input.float(), weight.float(), _float(bias)).to(dtype)


def _reduced_conv2d(tensors: tuple[Tensor, ...], options: Any, dtype: torch.dtype) -> Tensor:
    input, weight, bias = (*tensors, None)[:3]
    stride, padding, dilation, groups = options
    plain = not _compiling() and input.dim() == weight.dim() == 4 and plain_eager()
    numbers = padding_numbers(padding, weight.shape[2:], stride, dilation) if plain else None
    if not _compiling():
        count_kernel("conv2d")
    if numbers is not None:
        return _computed(_Window(stride, numbers, dilation, groups), tensors, dtype)
    with torch.autocast("cpu", enabled=False):
        return torch_functional.conv2d(input.float(), weight.float(), _float(bias), *options).to(dtype)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply as torch.nn.functional.linear: output = input @ weight.T + bias.

    Args:
        input: (*, in). On CPUs without instructions for them, bfloat16 and float16, under autocast too, are converted
            and computed in float32: the sums are rounded once to 16 bits. Everything else is left to torch.
        weight: (out, in), or (in,).
        bias: (out,), or None.

    Returns: (*, out). Under autocast in its dtype; parameters in float32 are then not rounded to 16 bits, and their
        gradients are float32.

    Raises: as torch.nn.functional.linear.

    Source: torch.nn.functional.linear.
    """
    tensors = (input, weight) if bias is None else (input, weight, bias)
    if has_torch_function(tensors):
        return handle_torch_function(linear, tensors, input, weight, bias)
    if not all(isinstance(t, Tensor) for t in tensors) or tracing() or _exporting():
        return torch_functional.linear(input, weight, bias)
    dtype = None if reference_forced() else output_dtype(tensors)
    if not _compiling():
        (count_reference if dtype is None else count_kernel)("linear")
    if dtype is None:
        return torch_functional.linear(input, weight, bias)
    if not _compiling() and weight.dim() == 2 and input.dim() and plain_eager():
        return _computed(_PRODUCT, tensors, dtype)
    with torch.autocast("cpu", enabled=False):
        return torch_functional.linear(input.float(), weight.float(), _float(bias)).to(dtype)
