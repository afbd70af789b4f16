# SPDX-License-Identifier: MIT
"""Dense convolutions in channels_last: each direction by a kernel or by torch's library, whichever was measured faster.

The convolution library computes an output and the gradient of an input at 70 to 97 % of the peak of the multipliers,
and the gradient of a weight at 30 to 60 %, because its tiles touch the pixels in strides that no prefetcher follows.
With AVX2 it is as fast as the kernels in all but the gradient of the weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.autograd import Function

from opswap import _core
from opswap._torch import constant_in_graphs

from ._convolution import Pair, library_backward, padding_numbers, pair
from ._convolution_operator import ConvolutionOperator
from ._function import base_apply, needs_graph, plain_cpu, seen_by_tracer
from ._stats import count_kernel, count_reference
from .pointwise import FEW_WEIGHTS, pointwise_fits, pointwise_pays, pointwise_wins

__all__ = [
    "conv_able",
    "conv_fits",
    "conv_pays",
    "conv_wins",
    "dense_conv2d",
    "faster_gradients",
    "module_window",
    "recorded_conv2d",
    "why_kept",
    "why_left",
]

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

# Of a weight, up to which forward and gradient of the input were measured as fast as the library's or faster.
_MOST_WEIGHTS = 1 << 18
# Of what these two write: three vectors of AVX-512 at least.
_WIDE_CHANNELS = 48
# The same of an input whose gradient is one of a window with steps.
_STRIDED_CHANNELS = 32
# Of an image, which the library reads with vectors that are mostly empty.
_IMAGE_CHANNELS = 4

Window = tuple[list[int], list[int], list[int]]  # stride, padding, dilation


class Directions(NamedTuple):
    """Which of the three is computed by a kernel."""

    forward: bool
    of_input: bool
    of_weight: bool


class DenseConv2d(Function):
    """Where nothing but autograd watches."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
        ctx.window = window
        ctx.save_for_backward(input, weight)
        return _forward(input, weight, bias, window)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        tensors, mask = (grad_output, input, weight), ctx.needs_input_grad[:3]
        gradients = NotImplemented
        if not needs_graph(tensors):
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


def _forward(input: Tensor, weight: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    """The output, by the kernel if it is faster."""
    if _directions(input, weight, window).forward:
        output = _core.plain_conv(input, weight, bias, *window)
        if output is not NotImplemented:
            return output
    return torch_functional.conv2d(input, weight, bias, *window)


def _kernel_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, window: Window, mask: Sequence[bool]
) -> Any:
    """The gradients of input, weight and bias that mask asks for, or NotImplemented if no kernel is to compute one."""
    if not plain_cpu((grad_output,)):
        return NotImplemented
    if grad_output.stride(1) != 1:
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
    wins = _directions(input, weight, window)
    of_input, of_weight = mask[0] and wins.of_input, mask[1] and wins.of_weight
    if not (of_input or of_weight):
        return NotImplemented
    made = _core.plain_conv_backward(
        grad_output, input, weight, *window, of_input, of_weight, mask[2] and of_weight
    )
    if made is NotImplemented:
        return NotImplemented
    rest = (mask[0] and not of_input, mask[1] and not of_weight, mask[2] and not of_weight)
    if not any(rest):
        return made
    others = _library_backward(grad_output, input, weight, window, rest)
    return tuple([b if wanted else a for a, b, wanted in zip(made, others, rest, strict=True)])


def faster_gradients(
    grad_output: Tensor, input: Tensor, weight: Tensor, window: Window, mask: Sequence[bool]
) -> Any:
    """The gradients of input, weight and bias that mask asks for, of a convolution with one group.

    Args: input: (N, C, H, W), as the others a tensor that needs no graph.
    Returns: NotImplemented if no kernel is faster for one of them.
    """
    pixels = grad_output.numel() // max(weight.shape[0], 1)
    if input.stride(1) != 1 or not conv_wins(input.shape[1], weight.shape[0], weight.shape[2:], pixels):
        return NotImplemented
    return _kernel_backward(grad_output, input, weight, window, mask)


def _wins_avx2(channels: int, outputs: int, taps: int) -> bool:
    """1.2 to 2 times as fast, 1x1 with large weights 0.9 times."""
    return taps > 1 or channels * outputs < FEW_WEIGHTS


def _wins_avx512(channels: int, outputs: int, taps: int) -> bool:
    """1.1 to 3 times as fast; 0.94 to 1.3 times with 8 to 31 channels and several taps."""
    if channels < 8:
        return outputs >= 16 and (taps > 1 or outputs <= 64)
    return taps == 1 or channels >= 32


def _is_wide(channels: int, outputs: int, taps: int, written: int) -> bool:
    """Of `written` channels of output or input: 1.0 to 1.1 times as fast as torch on Zen 4, 1.01 to 1.22 on Zen 5.

    With fewer channels 0.96 to 1.03 times.
    """
    return written >= _WIDE_CHANNELS and taps > 1 and channels * outputs * taps <= _MOST_WEIGHTS


def _is_of_images(channels: int, outputs: int, taps: int) -> bool:
    """An output of at least one vector: 1.0 to 1.7 times as fast on Zen 5, ShuffleNetV2's first convolution 1.7."""
    return channels <= _IMAGE_CHANNELS and outputs >= _FEWEST_CHANNELS["avx512"] and taps > 1


def _is_strided(channels: int, taps: int, steps: int) -> bool:
    """Of the gradient of such an input: 1.1 to 1.6 times as fast on Zen 5, 1.0 to 1.4 limited to AVX2, any weight."""
    return steps > 1 and taps > 1 and channels >= _STRIDED_CHANNELS


# By tier, measured on Zen 5 in float32, in float64 the gain is larger.
_WINS = {"avx2": _wins_avx2, "avx512": _wins_avx512}


@lru_cache(maxsize=1024)
def _directions_of(
    tier: str, channels: int, outputs: int, rows: int, columns: int, steps: int = 1
) -> Directions:
    """Args: rows, columns: of the window. steps: the larger of its strides."""
    taps = rows * columns
    if tier not in _WINS or max(rows, columns) > _MOST_TAPS:
        return Directions(False, False, False)
    of_weight = max(channels, outputs) >= _FEWEST_CHANNELS[tier] and _WINS[tier](channels, outputs, taps)
    strided = _is_strided(channels, taps, steps)
    if tier != "avx512":
        return Directions(False, strided, of_weight)
    size = (channels, outputs, taps)
    forward = _is_wide(*size, outputs) or _is_of_images(*size)
    return Directions(forward, strided or _is_wide(*size, channels), of_weight)


def _directions(input: Tensor, weight: Tensor, window: Window) -> Directions:
    outputs, _, rows, columns = weight.shape
    return _directions_of(_core.isa_current(), input.shape[1], outputs, rows, columns, max(window[0]))


def conv_wins(channels: int, outputs: int, taps: Sequence[int], pixels: int | None = None) -> bool:
    """True if a kernel was measured faster than torch's in a direction at least, on the tier in use.

    Args: channels, outputs: of input and output. taps: (kH, kW). pixels: of the output, in all images; None: many.
    """
    enough = pixels is None or pixels * channels * outputs * taps[0] * taps[1] >= _FEWEST_PRODUCTS
    return enough and any(_directions_of(_core.isa_current(), channels, outputs, *taps))


def _is_one_map(weight: Sequence[int], window: Window) -> bool:
    """True for what `pointwise_conv2d` supports on this tier; weight: its size."""
    return list(weight[2:]) == [1, 1] and window[1] == [0, 0] and pointwise_wins()


def _output(input: Sequence[int], stride: Sequence[int]) -> tuple[int, int, int]:
    """(N, H, W) of the output of a 1 x 1 convolution without padding."""
    batch, _, height, width = input
    return batch, (height - 1) // max(stride[0], 1) + 1, (width - 1) // max(stride[1], 1) + 1


def _is_left_to_pointwise(weight: Sequence[int], window: Window, input: Sequence[int]) -> bool:
    """True for what `pointwise_conv2d` computes as a whole on this tier. Args: weight, input: their sizes."""
    pays = pointwise_pays(weight[0] * weight[1], _output(input, window[0]))
    return pays and _is_one_map(weight, window)


def why_kept(weight: Sequence[int], window: Window) -> str | None:
    """Why a dense convolution is not replaced: "" if it is, None if another operator is for it, or none.

    Args: weight: its size (out, C, kH, kW).
    """
    outputs, channels, *taps = weight
    tier = _core.isa_current()
    if tier not in _WINS:
        return None
    if _is_one_map(weight, window):  # a large weight's few pixels
        return None if outputs * channels < FEW_WEIGHTS else ""
    if max(outputs, channels) < _FEWEST_CHANNELS[tier]:
        return None
    if max(taps) > _MOST_TAPS:
        return f"a window of {tuple(taps)}: the kernel takes up to {_MOST_TAPS} taps in a direction"
    if not conv_wins(channels, outputs, taps):
        return f"{channels} channels in, {outputs} out, a window of {tuple(taps)}: torch is as fast"
    return ""


def why_left(
    input: Tensor, weight: Tensor, stride: Pair = 1, padding: Pair | str = 0, dilation: Pair = 1
) -> str:
    """Why `conv_pays` is False for images that the kernels support; "" if another reason holds."""
    batch, channels, height, width = input.shape
    size, window = tuple(weight.shape), _window(weight, stride, padding, dilation)
    if window is not None and list(size[2:]) == [1, 1] and size[0] * size[1] >= FEW_WEIGHTS:
        output = _output(input.shape, window[0])
        pixels = output[0] * output[1] * output[2]
        if not pointwise_pays(size[0] * size[1], output):
            few = f"torch is faster on {pixels} pixels with a weight of {FEW_WEIGHTS:,} elements or more"
            return f"{few}: it is {size}"
    if not (_grad_enabled() and weight.requires_grad):
        return "a gradient of the weight is what the kernel computes faster: none is needed"
    steps = max(window[0][0] * window[0][1], 1) if window else 1
    products = batch * height * width // steps * channels * size[0] * size[2] * size[3]
    if products < _FEWEST_PRODUCTS:
        return f"torch is as fast below {_FEWEST_PRODUCTS:,} products: an input {tuple(input.shape)} has {products:,}"
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
    if window is None or channels != weight.shape[1]:
        return None
    if _is_left_to_pointwise(weight.shape, window, input.shape):
        return None
    steps = max(window[0][0] * window[0][1], 1)
    return window if conv_wins(channels, outputs, taps, batch * height * width // steps) else None


def module_window(module: nn.Conv2d) -> Window | None:
    """The options of a module in numbers; None for another padding than by as many zeros on both sides."""
    if module.padding_mode != "zeros":
        return None
    return _window(module.weight, module.stride, module.padding, module.dilation)


def _is_small(input: Any, weight: Any, stride: Pair) -> bool:
    """True only if no kernel is faster for so little: a cheap look, as most convolutions that torch keeps are small."""
    if type(input) is not Tensor or not isinstance(weight, Tensor) or input.dim() != 4 or weight.dim() != 4:
        return False
    if weight.shape[2] == weight.shape[3] == 1 and weight.numel() >= FEW_WEIGHTS:
        return False
    steps = stride[0] * stride[1] if type(stride) is tuple and len(stride) == 2 else 1
    outputs, _, height, width = weight.shape
    return input.numel() * outputs * height * width < _FEWEST_PRODUCTS * max(steps, 1)


def conv_pays(input: Any, weight: Any, stride: Pair, padding: Pair | str, dilation: Pair) -> bool:
    """True if `conv2d` is faster than torch's function for this call with one group: by `conv_fits`, or because it is
    a 1 x 1 convolution with a large weight, of few pixels or of contiguous images, with or without a gradient."""
    if _compiling() or _is_small(input, weight, stride):
        return False
    if conv_fits(input, weight, stride, padding, dilation) is not None:
        return True
    if not pointwise_fits(input, weight, stride) or weight.numel() < FEW_WEIGHTS:
        return False
    window = _window(weight, stride, padding, dilation)
    if window is None:
        return False
    if input.stride(1) != 1:
        return _is_one_map(weight.shape, window)
    return _is_left_to_pointwise(weight.shape, window, input.shape)


def conv_able(module: nn.Conv2d, input: Any) -> bool:
    """`conv_pays` for the weight and the options of a module."""
    if module.groups != 1 or module.padding_mode != "zeros" or "_conv_forward" in module.__dict__:
        return False
    return conv_pays(input, module.weight, module.stride, module.padding, module.dilation)


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


def _by_kernel(input: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Any:
    window: Any = tuple(map(list, options))
    return _forward(input, weight, bias, window) if plain_cpu((input, weight)) else NotImplemented


def _backward_by_kernel(grad_output: Tensor, input: Tensor, weight: Tensor, *arguments: Any) -> Any:
    window: Any = tuple(map(list, arguments[:3]))
    return _kernel_backward(grad_output, input, weight, window, arguments[3:])


_operator = ConvolutionOperator(
    _NAME,
    ", SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation",
    lambda weight, stride, padding, dilation: (stride, padding, 1, dilation),
    _by_kernel,
    _backward_by_kernel,
)


@constant_in_graphs
def _is_avx2() -> bool:
    return _core.isa_current() == "avx2"


@constant_in_graphs
def _is_avx512() -> bool:
    return _core.isa_current() == "avx512"


def recorded_conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair | str, dilation: Pair
) -> Any:
    """The operator, for a graph: where a kernel would be faster in the directions that the graph may have.

    NotImplemented for everything else; torch's convolution is recorded then. Args: as torch.nn.functional.conv2d.
    """
    if not seen_by_tracer() or _is_autocast("cpu") or input.dim() != 4 or weight.dim() != 4:
        return NotImplemented
    if input.dtype not in _DTYPES or weight.dtype is not input.dtype or not input.is_cpu:
        return NotImplemented
    if input.layout is not torch.strided or input.stride(1) != 1 or input.shape[1] != weight.shape[1]:
        return NotImplemented
    window = _window(weight, stride, padding, dilation)
    outputs, channels, *taps = weight.shape
    tier = "avx512" if _is_avx512() else "avx2" if _is_avx2() else ""
    if window is None or (taps == [1, 1] and outputs * channels < FEW_WEIGHTS):
        return NotImplemented
    wins = _directions_of.__wrapped__(tier, channels, outputs, *taps)
    needed = (True, input.requires_grad, weight.requires_grad)
    if not any(a and b for a, b in zip(wins, needed, strict=True)):
        return NotImplemented
    return _operator(input, weight, bias, *window)
