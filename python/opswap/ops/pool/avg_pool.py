# SPDX-License-Identifier: MIT
"""Average pooling. It is linear: forward and backward are each other's transpose and derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from opswap import _core

from .._derivatives import linear_pair
from .._function import tracing
from .._layout import dense_copy, empty, suggest_memory_format
from .._operator import Operator
from ._arguments import (
    FLOATS,
    Window,
    as_torch,
    autocast_to_float32,
    check_dtype,
    check_tensor,
    fits,
    make_window,
    pooled_size,
    require_bool,
    require_int,
)
from ._call import PlainCall, in_format_of, larger_input, plain_torch, run_kernel

__all__ = ["avg_pool2d", "avg_pool3d", "reference_avg_pool3d"]

_DTYPES = FLOATS | {torch.int64}


def _widened(input: Tensor) -> Tensor:
    """torch's avg_pool3d has no half precision on the CPU."""
    return input.float() if input.dtype in (torch.float16, torch.bfloat16) else input


def reference_avg_pool3d(input: Tensor, window: Window, *options: Any) -> Tensor:
    """avg_pool3d, as 2-D pooling of every stride-th slice if the window has depth 1.

    Args:
        input: (N, C, D, H, W), or (C, D, H, W) as torch reads it.
        options: count_include_pad, divisor_override.
    Returns: the same with D, H, W pooled.
    """
    kernel, stride, padding = window[:3]
    if kernel[0] > 1:
        arguments = (kernel, stride, padding, window.ceil_mode, *options)
        return torch_functional.avg_pool3d(_widened(input), *arguments).to(input.dtype)
    planes = input.flatten(0, 1) if input.dim() == 5 else input
    arguments = (kernel[1:], stride[1:], padding[1:], window.ceil_mode, *options)
    planes = torch_functional.avg_pool2d(planes[:, :: stride[0]], *arguments)
    return planes.unflatten(0, input.shape[:2]) if input.dim() == 5 else planes


def _reference(input: Tensor, *arguments: Any) -> Tensor:
    *window_and_options, channel_step = arguments
    planes = input[:, ::channel_step].contiguous()
    if input.dim() == 4:
        output = torch_functional.avg_pool2d(planes, *window_and_options)
    else:
        output = torch_functional.avg_pool3d(_widened(planes), *window_and_options).to(input.dtype)
    return dense_copy(output, suggest_memory_format(input))


def _size(input: Tensor, *arguments: Any) -> tuple[int, ...]:
    kernel_size, stride, padding, ceil_mode, _, _, channel_step = arguments
    window = Window(kernel_size, stride, padding, (1,) * len(kernel_size), ceil_mode)
    check_dtype("avg_pool", input, _DTYPES)
    return pooled_size("avg_pool", input, window, channel_step)


def _fake(input: Tensor, *arguments: Any) -> Tensor:
    return empty(input, _size(input, *arguments), suggest_memory_format(input))


def _described(arguments: Sequence[Any]) -> tuple[Any, ...]:
    kernel_size, stride, padding, *rest = arguments
    return (tuple(kernel_size), tuple(stride), tuple(padding), *rest)


def _kernel(input: Tensor, *arguments: Any) -> Tensor:
    _size(input, *arguments)
    described = _described(arguments)
    return run_kernel("avg_pool", _core.avg_pool, (input,), described, suggest_memory_format(input))


_GEOMETRY = (
    "SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, bool ceil_mode, bool count_include_pad, "
    "SymInt? divisor_override, SymInt channel_step"
)

# input: (N, C, *S) with 2 or 3 spatial dimensions; output: (N, ceil(C / channel_step), *O), dense in the
# memory format of input.
_operator = Operator(f"avg_pool(Tensor input, {_GEOMETRY}) -> Tensor", _kernel, _reference, _fake)


def _backward_reference(grad_output: Tensor, input_size: Sequence[int], *arguments: Any) -> Tensor:
    *window_and_options, channel_step, memory_format = arguments
    aten = torch.ops.aten
    backward = aten.avg_pool2d_backward if grad_output.dim() == 4 else aten.avg_pool3d_backward
    grad = grad_output.contiguous()
    wide = _widened(grad) if grad.dim() == 5 else grad
    planes = wide.new_empty((*grad.shape[:2], *input_size[2:]))
    grad_input = empty(grad_output, input_size, memory_format).zero_()
    grad_input[:, ::channel_step] = backward(wide, planes, *window_and_options).to(grad.dtype)
    return grad_input


def _backward_fake(grad_output: Tensor, input_size: Sequence[int], *arguments: Any) -> Tensor:
    return empty(grad_output, input_size, arguments[-1])


def _backward_kernel(grad_output: Tensor, input_size: Sequence[int], *arguments: Any) -> Tensor:
    *geometry, memory_format = arguments
    channels_last = memory_format is not torch.contiguous_format
    described = (tuple(input_size), *_described(geometry), channels_last)
    return run_kernel("avg_pool_backward", _core.avg_pool_backward, (grad_output,), described, memory_format)


_backward_operator = Operator(
    f"avg_pool_backward(Tensor grad_output, SymInt[] input_size, {_GEOMETRY}, "
    "MemoryFormat memory_format) -> Tensor",
    _backward_kernel,
    _backward_reference,
    _backward_fake,
    resize=larger_input,
)


def _keep(constants: tuple[Any, ...], tensors: Sequence[Tensor], _: Any) -> Any:
    (input,) = tensors
    return (), (tuple(input.shape), *constants, suggest_memory_format(input))


def _derivative(tangent: Tensor, _: Sequence[int], *arguments: Any) -> Tensor:
    return _operator(tangent, *arguments[:-1])


linear_pair(_operator, _backward_operator, _keep, _derivative)


def _gradient(
    arguments: tuple[Any, ...], size: tuple[int, ...], memory_format: torch.memory_format, grad: Tensor
) -> Tensor:
    return _backward_operator(grad, size, *arguments, memory_format)


_plain_call = PlainCall("avg_pool", _core.plain_avg_pool, _core.plain_avg_pool_backward, _gradient)


def _pool(input: Tensor, window: Window, options: tuple[Any, ...], channel_step: int = 1) -> Tensor:
    return _operator(input, *window[:3], window.ceil_mode, *options, channel_step)


def _check_options(name: str, count_include_pad: Any, divisor_override: Any) -> tuple[bool, int | None]:
    require_bool(name, "count_include_pad", count_include_pad)
    if divisor_override is not None:
        divisor_override = require_int(name, "divisor_override", divisor_override)
        if divisor_override == 0:
            raise RuntimeError(f"{name}: divisor_override must not be zero, got {divisor_override}")
    return count_include_pad, divisor_override


def _check_volume(input: Tensor, window: Window) -> None:
    """Padding does not help an input that is smaller than the window: torch's rule for this pool alone."""
    if any(size < kernel for size, kernel in zip(input.shape[-3:], window.kernel_size, strict=True)):
        raise RuntimeError(
            f"avg_pool3d: input of size {tuple(input.shape)} is smaller than kernel_size {window.kernel_size}"
        )


def _pool_in_torch(volumes: bool, input: Tensor, window: Window, options: tuple[Any, ...]) -> Tensor:
    if volumes:
        return reference_avg_pool3d(input, window, *options)
    return torch_functional.avg_pool2d(input, *window[:3], window.ceil_mode, *options)


def _torch_avg_pool3d(input: Tensor, *arguments: Any) -> Tensor:
    return torch_functional.avg_pool3d(_widened(input), *arguments).to(input.dtype)


def _avg_pool(ours: Callable[..., Any], volumes: bool, input: Any, *arguments: Any) -> Tensor:
    """The public functions. Args: volumes: `ours` is avg_pool3d; arguments: as of `ours`, after the input."""
    output = _plain_call(volumes, input, *arguments)
    if output is not NotImplemented:
        return output
    if has_torch_function_unary(input):
        return handle_torch_function(ours, (input,), input, *arguments)
    name, spatial = ours.__name__, 3 if volumes else 2
    check_tensor(name, input)
    stock = _torch_avg_pool3d if volumes else torch_functional.avg_pool2d
    if tracing():
        return stock(input, *arguments)
    if not fits(input, spatial):
        return as_torch(name, spatial, stock, input, *arguments)
    *sides, ceil_mode, count_include_pad, divisor_override = arguments
    window = make_window(name, spatial, *sides, 1, ceil_mode)
    options = _check_options(name, count_include_pad, divisor_override)
    if volumes:
        input = autocast_to_float32(input)
        _check_volume(input, window)
    if plain_torch(input, "avg_pool"):
        return _pool_in_torch(volumes, input, window, options)
    if input.dim() == spatial + 2:
        return _pool(input, window, options)
    if volumes and window.kernel_size[0] == 1:
        return _pool(input, window.without_depth(), options, window.stride[0])
    output = _pool(input.contiguous().unsqueeze(0), window, options).squeeze(0)
    return in_format_of(input, output) if volumes else output


def avg_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Average pooling over planes, as torch.nn.functional.avg_pool2d.

    Args:
        input: (N, C, H, W) or (C, H, W), floating point or int64.
        kernel_size, stride, padding, ceil_mode: as in torch; ints or pairs (height, width).
        count_include_pad: divide by the taps in the input and its padding, not by those in the input alone.
        divisor_override: divide by this instead.
    Returns: (N, C, OH, OW) or (C, OH, OW) in the memory format of input.
    Raises: RuntimeError for a window, input or divisor that torch refuses, NotImplementedError for another
        dtype, TypeError for an argument that is not a tensor, int or bool, ValueError for an int of more than 64 bits.
    """
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool(avg_pool2d, False, input, *arguments)


def avg_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Average pooling over volumes, as torch.nn.functional.avg_pool3d.

    Args:
        input: (N, C, D, H, W) or (C, D, H, W), floating point or int64; half precision, which torch lacks
            here, sums in float32. A batch of images (N, C, H, W) is read with N as channels and C as depth,
            as in `max_pool3d`.
        kernel_size, stride, padding, ceil_mode: as in torch; ints or triples (depth, height, width).
        count_include_pad, divisor_override: as `avg_pool2d`.
    Returns: the same dimensions, pooled, in the memory format of input (torch's result is always contiguous).
    Raises: as `avg_pool2d`. Autocast on the CPU computes in float32, as torch does.
    """
    arguments = (kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
    return _avg_pool(avg_pool3d, True, input, *arguments)
