# SPDX-License-Identifier: MIT
"""Max pooling with one-byte window offsets in place of int64 indices.

MaxPool3d with a window of depth 1 is 2-D pooling of every stride-th slice, so both use one operator: its
output channel c reads input channel c * channel_step. The backward needs the offsets only, not the input.
"""

from __future__ import annotations

import math
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
    INTEGERS,
    Window,
    as_torch,
    autocast_to_float32,
    check_dtype,
    check_tensor,
    fits,
    make_window,
    pooled_size,
    require_bool,
)
from ._call import PlainCall, find_again, in_format_of, larger_input, needs_function, plain_torch, run_kernel
from ._offsets import (
    gather_at_offsets,
    indices_to_offsets,
    offset_dtype,
    offsets_to_indices,
    offsets_to_pixels,
)

__all__ = ["max_pool2d", "max_pool3d", "max_pool_gradient", "reference_max_pool3d"]

_DTYPES = FLOATS | INTEGERS
_TAPS = 2**31


def reference_max_pool3d(input: Tensor, window: Window) -> Tensor:
    """max_pool3d in 2-D pools, for devices without a 3-D pool: over the planes, then over the depth.

    The first maximum of the first plane that has it is the first maximum of the window, and likewise the last
    NaN, so values and gradients are those of one pass.

    Args: input: (N, C, D, H, W), or (C, D, H, W) as torch reads it. Returns: the same with D, H, W pooled.
    """
    depth, stride, padding, dilation = (values[0] for values in window[:4])
    planes = input.flatten(0, -4) if input.dim() == 5 else input
    if depth == 1:
        planes = planes[:, ::stride]
    planes = torch_functional.max_pool2d(planes, *window.without_depth())
    height, width = planes.shape[-2:]
    if depth > 1:
        columns = planes.flatten(2).unsqueeze(1)
        window2d = ((depth, 1), (stride, 1), (padding, 0), (dilation, 1), window.ceil_mode)
        planes = torch_functional.max_pool2d(columns, *window2d).squeeze(1)
        planes = planes.unflatten(2, (height, width))
    return planes.unflatten(0, input.shape[:2]) if input.dim() == 5 else planes


def _torch_max_pool(input: Tensor, window: Window, channel_step: int) -> tuple[Tensor, Tensor]:
    """torch's values and flat indices, dense in the memory format of the input."""
    pool = torch_functional.max_pool2d if input.dim() == 4 else torch_functional.max_pool3d
    output, indices = pool(input[:, ::channel_step].contiguous(), *window, return_indices=True)
    memory_format = suggest_memory_format(input)
    return dense_copy(output, memory_format), dense_copy(indices, memory_format)


def _reference(input: Tensor, *arguments: Any) -> Tensor:
    window, channel_step = Window(*arguments[:-1]), arguments[-1]
    return _torch_max_pool(input, window, channel_step)[0]


def _reference_with_offsets(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    window, channel_step = Window(*arguments[:-1]), arguments[-1]
    output, indices = _torch_max_pool(input, window, channel_step)
    offsets = indices_to_offsets(indices, window, input.shape[2:])
    return output, dense_copy(offsets, suggest_memory_format(input))


def _size(input: Tensor, *arguments: Any) -> tuple[int, ...]:
    check_dtype("max_pool", input, _DTYPES)
    return pooled_size("max_pool", input, Window(*arguments[:-1]), arguments[-1])


def _fake(input: Tensor, *arguments: Any) -> Tensor:
    return empty(input, _size(input, *arguments), suggest_memory_format(input))


def _fake_with_offsets(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    output = _fake(input, *arguments)
    return output, torch.empty_like(output, dtype=offset_dtype(arguments[0]))


def _run(with_offsets: bool, input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor | None]:
    _size(input, *arguments)
    *geometry, ceil_mode, channel_step = arguments
    described = (*map(tuple, geometry), ceil_mode, channel_step, with_offsets)
    return run_kernel("max_pool", _core.max_pool, (input,), described, suggest_memory_format(input))


def _kernel(input: Tensor, *arguments: Any) -> Tensor:
    return _run(False, input, *arguments)[0]


def _kernel_with_offsets(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return _run(True, input, *arguments)


_GEOMETRY = "SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] dilation"

# input: (N, C, *S) with 2 or 3 spatial dimensions; output and offsets: (N, ceil(C / channel_step), *O), dense
# in the memory format of input; offsets: uint8 up to 256 taps, else int32.
_operator = Operator(
    f"max_pool(Tensor input, {_GEOMETRY}, bool ceil_mode, SymInt channel_step) -> Tensor",
    _kernel,
    _reference,
    _fake,
)
_operator_with_offsets = Operator(
    f"max_pool_with_offsets(Tensor input, {_GEOMETRY}, bool ceil_mode, SymInt channel_step) "
    "-> (Tensor, Tensor)",
    _kernel_with_offsets,
    _reference_with_offsets,
    _fake_with_offsets,
    differentiable=1,
)


def _backward_reference(
    grad_output: Tensor,
    offsets: Tensor,
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    channel_step: int,
    memory_format: torch.memory_format,
) -> Tensor:
    window = Window(tuple(kernel_size), tuple(stride), tuple(padding), tuple(dilation), False)
    pixels, hits = offsets_to_pixels(offsets, window, input_size[2:])
    grad = grad_output if hits is None else torch.where(hits, grad_output, 0)
    planes = grad.new_zeros((*offsets.shape[:2], *input_size[2:]))
    planes.flatten(2).scatter_add_(2, pixels.flatten(2), grad.flatten(2))
    grad_input = empty(grad_output, input_size, memory_format).zero_()
    grad_input[:, ::channel_step] = planes
    return grad_input


def _backward_fake(
    grad_output: Tensor, offsets: Tensor, input_size: Sequence[int], *arguments: Any
) -> Tensor:
    return empty(grad_output, input_size, arguments[-1])


def _backward_kernel(
    grad_output: Tensor, offsets: Tensor, input_size: Sequence[int], *arguments: Any
) -> Tensor:
    *geometry, channel_step, memory_format = arguments
    channels_last = memory_format is not torch.contiguous_format
    described = (tuple(input_size), *map(tuple, geometry), channel_step, channels_last)
    tensors = (grad_output, offsets)
    return run_kernel("max_pool_backward", _core.max_pool_backward, tensors, described, memory_format)


_backward_operator = Operator(
    f"max_pool_backward(Tensor grad_output, Tensor offsets, SymInt[] input_size, {_GEOMETRY}, "
    "SymInt channel_step, MemoryFormat memory_format) -> Tensor",
    _backward_kernel,
    _backward_reference,
    _backward_fake,
    resize=larger_input,
)


def _keep(constants: tuple[Any, ...], tensors: Sequence[Tensor], outputs: tuple[Tensor, Tensor]) -> Any:
    (input,) = tensors
    *geometry, _, channel_step = constants
    return outputs[1:], (tuple(input.shape), *geometry, channel_step, suggest_memory_format(input))


def _gather(input: Tensor, offsets: Tensor, _: Sequence[int], *arguments: Any) -> Tensor:
    *geometry, channel_step, _ = arguments
    return gather_at_offsets(input, offsets, Window(*geometry, False), channel_step)


linear_pair(_operator_with_offsets, _backward_operator, _keep, _gather)
find_again(_operator, _operator_with_offsets)


def _indices_reference(offsets: Tensor, plane_size: Sequence[int], *geometry: Any) -> Tensor:
    indices = offsets_to_indices(offsets, Window(*geometry, False), plane_size)
    return dense_copy(indices, suggest_memory_format(offsets))


def _indices_fake(offsets: Tensor, plane_size: Sequence[int], *geometry: Any) -> Tensor:
    return empty(offsets, offsets.shape, suggest_memory_format(offsets), torch.int64)


def _indices_kernel(offsets: Tensor, plane_size: Sequence[int], *geometry: Any) -> Tensor:
    indices = _indices_fake(offsets, plane_size, *geometry)
    arguments = (indices, tuple(plane_size), *(tuple(values) for values in geometry))
    run_kernel(
        "max_pool_indices", _core.max_pool_indices, (offsets,), arguments, suggest_memory_format(indices)
    )
    return indices


_indices_operator = Operator(
    f"max_pool_indices(Tensor offsets, SymInt[] plane_size, {_GEOMETRY}) -> Tensor",
    _indices_kernel,
    _indices_reference,
    _indices_fake,
)


def max_pool_gradient(
    window: tuple[Any, ...],
    channel_step: int,
    size: tuple[int, ...],
    memory_format: torch.memory_format,
    offsets: Tensor,
    grad: Tensor,
) -> Tensor:
    """The gradient of an input of this size and memory format. Args: window: of which ceil_mode is not read."""
    return _backward_operator(grad, offsets, size, *window[:4], channel_step, memory_format)


_plain_call = PlainCall("max_pool", _core.plain_max_pool, _core.plain_max_pool_backward, max_pool_gradient)


def _pool(
    input: Tensor, window: Window, channel_step: int, return_indices: bool
) -> tuple[Tensor, Tensor | None]:
    """Pool (N, C, *S); the indices are flat within a plane, and None unless requested."""
    if not (return_indices or needs_function(input)):
        return _operator(input, *window, channel_step), None
    output, offsets = _operator_with_offsets(input, *window, channel_step)
    if not return_indices:
        return output, None
    return output, _indices_operator(offsets, input.shape[2:], *window[:4])


def _pool_unbatched(input: Tensor, window: Window, return_indices: bool) -> tuple[Tensor, Tensor | None]:
    """Pool (C, *S); as in torch the result is contiguous."""
    output, indices = _pool(input.contiguous().unsqueeze(0), window, 1, return_indices)
    return output.squeeze(0), None if indices is None else indices.squeeze(0)


def _pool_slices(input: Tensor, window: Window, return_indices: bool) -> tuple[Tensor, Tensor | None]:
    """max_pool3d of (C, D, H, W) by a window of depth 1, in the memory format of a batch of images."""
    step = window.stride[0]
    output, indices = _pool(input, window.without_depth(), step, return_indices)
    if indices is not None:
        depth, height, width = output.shape[1], *input.shape[2:]
        first = torch.arange(depth, device=input.device) * (step * height * width)
        indices = indices + first.view(-1, 1, 1)
    return output, indices


def _pool_volumes(input: Tensor, window: Window, return_indices: bool) -> tuple[Tensor, Tensor | None]:
    """max_pool3d of (C, D, H, W) with a deeper window."""
    output, indices = _pool_unbatched(input, window, return_indices)
    return in_format_of(input, output), None if indices is None else in_format_of(input, indices)


def _pool_in_torch(
    volumes: bool, input: Tensor, window: Window, return_indices: bool
) -> Tensor | tuple[Tensor, Tensor]:
    if not volumes:
        return torch_functional.max_pool2d(input, *window, return_indices=return_indices)
    if return_indices:
        dense = input.contiguous() if input.dim() == 4 else input
        return torch_functional.max_pool3d(dense, *window, return_indices=True)
    return reference_max_pool3d(input, window)


def _torch_max_pool3d(input: Tensor, *arguments: Any) -> Tensor | tuple[Tensor, Tensor]:
    """torch's, which refuses a batch of images in channels_last."""
    return torch_functional.max_pool3d(input.contiguous() if input.dim() == 4 else input, *arguments)


def _max_pool(
    ours: Callable[..., Any], volumes: bool, input: Any, *arguments: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """The public functions. Args: volumes: `ours` is max_pool3d; arguments: as of `ours`, after the input."""
    *window_arguments, return_indices = arguments
    if return_indices is False:
        output = _plain_call(volumes, input, *window_arguments)
        if output is not NotImplemented:
            return output
    if has_torch_function_unary(input):
        return handle_torch_function(ours, (input,), input, *arguments)
    name, spatial = ours.__name__, 3 if volumes else 2
    check_tensor(name, input)
    stock = _torch_max_pool3d if volumes else torch_functional.max_pool2d
    if tracing():
        return stock(input, *window_arguments, return_indices)
    if not fits(input, spatial):
        return as_torch(name, spatial, stock, input, *window_arguments, return_indices)
    require_bool(name, "return_indices", return_indices)
    window = make_window(name, spatial, *window_arguments)
    if volumes and not return_indices:
        input = autocast_to_float32(input)
    # Offsets are int32: for larger windows a kernel cannot return the tap of the maximum.
    offsets = return_indices or needs_function(input)
    if plain_torch(input, "max_pool") or (offsets and math.prod(window.kernel_size) >= _TAPS):
        return _pool_in_torch(volumes, input, window, return_indices)
    if input.dim() == spatial + 2:
        output, indices = _pool(input, window, 1, return_indices)
    elif not volumes:
        output, indices = _pool_unbatched(input, window, return_indices)
    elif window.kernel_size[0] == 1:
        output, indices = _pool_slices(input, window, return_indices)
    else:
        output, indices = _pool_volumes(input, window, return_indices)
    return output if indices is None else (output, indices)


def max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Max pooling over planes, as torch.nn.functional.max_pool2d, bit for bit.

    Args:
        input: (N, C, H, W) or (C, H, W), floating point or (u)int8, int16, int32, int64; strides are free.
        kernel_size, stride, padding, dilation, ceil_mode: as in torch; ints or pairs (height, width).
        return_indices: also return the position of each maximum.
    Returns: (N, C, OH, OW) or (C, OH, OW) in the memory format of input; with return_indices also the flat
        int64 index h * W + w of the first maximum of every window, or of its last NaN.
    Raises: RuntimeError for a window or an input that torch refuses, NotImplementedError for another dtype,
        TypeError for an argument that is not a tensor, int or bool, ValueError for an int of more than 64 bits.
    """
    return _max_pool(
        max_pool2d, False, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


def max_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Max pooling over volumes, as torch.nn.functional.max_pool3d, bit for bit.

    Args:
        input: (N, C, D, H, W) or (C, D, H, W), dtypes as `max_pool2d`. A batch of images (N, C, H, W) is
            therefore read with N as channels and C as depth: the window then runs over the image's
            channels. Unlike torch's, this function accepts such a batch in channels_last too.
        kernel_size, stride, padding, dilation, ceil_mode: as in torch; ints or (depth, height, width).
        return_indices: also return the position of each maximum.
    Returns: the same dimensions, pooled, in the memory format of input; with return_indices also the flat
        int64 index (d * H + h) * W + w of the first maximum of every window, or of its last NaN.
    Raises: as `max_pool2d`. Like torch, autocast on the CPU computes in float32 unless indices are requested.
    """
    return _max_pool(
        max_pool3d, True, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )
