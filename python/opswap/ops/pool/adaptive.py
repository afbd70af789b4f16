# SPDX-License-Identifier: MIT
"""Adaptive max pooling: output pixel o of O is the maximum of input pixels floor(o S / O) up to
ceil((o + 1) S / O), the last not included.
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
    as_torch,
    autocast_to_float32,
    check_dtype,
    check_tensor,
    fits,
    require_bool,
    require_int,
)
from ._call import PlainCall, find_again, larger_input, needs_function, plain_torch, run_kernel

__all__ = ["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"]

_MAX_PLANE = 2**31 - 1
_TORCH = {
    1: torch_functional.adaptive_max_pool1d,
    2: torch_functional.adaptive_max_pool2d,
    3: torch_functional.adaptive_max_pool3d,
}


def _reference_with_index(input: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    pool = _TORCH[input.dim() - 2]
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    output, index = pool(wide.contiguous(), tuple(output_size), return_indices=True)
    memory_format = suggest_memory_format(input)
    return dense_copy(output.to(input.dtype), memory_format), dense_copy(index.int(), memory_format)


def _reference(input: Tensor, output_size: Sequence[int]) -> Tensor:
    return _reference_with_index(input, output_size)[0]


def _fake(input: Tensor, output_size: Sequence[int]) -> Tensor:
    check_dtype("adaptive_max_pool", input, FLOATS)
    return empty(input, (*input.shape[:2], *output_size), suggest_memory_format(input))


def _fake_with_index(input: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    output = _fake(input, output_size)
    return output, torch.empty_like(output, dtype=torch.int32)


def _run(input: Tensor, output_size: Sequence[int], with_index: bool) -> tuple[Tensor, Tensor | None]:
    check_dtype("adaptive_max_pool", input, FLOATS)
    described = ((*input.shape[:2], *output_size), with_index)
    memory_format = suggest_memory_format(input)
    return run_kernel("adaptive_max_pool", _core.adaptive_max_pool, (input,), described, memory_format)


def _kernel(input: Tensor, output_size: Sequence[int]) -> Tensor:
    return _run(input, output_size, False)[0]


def _kernel_with_index(input: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
    return _run(input, output_size, True)


# input: (N, C, *S) with 2 or 3 spatial dimensions; output and index: (N, C, *output_size), dense in the
# memory format of input; index: int32, flat within the plane or volume.
_operator = Operator(
    "adaptive_max_pool(Tensor input, SymInt[] output_size) -> Tensor",
    _kernel,
    _reference,
    _fake,
)
_operator_with_index = Operator(
    "adaptive_max_pool_with_index(Tensor input, SymInt[] output_size) -> (Tensor, Tensor)",
    _kernel_with_index,
    _reference_with_index,
    _fake_with_index,
    differentiable=1,
)


def _backward_reference(
    grad_output: Tensor, index: Tensor, input_size: Sequence[int], memory_format: torch.memory_format
) -> Tensor:
    planes = grad_output.new_zeros(tuple(input_size))
    planes.flatten(2).scatter_add_(2, index.flatten(2).long(), grad_output.flatten(2))
    return dense_copy(planes, memory_format)


def _backward_fake(
    grad_output: Tensor, index: Tensor, input_size: Sequence[int], memory_format: torch.memory_format
) -> Tensor:
    return empty(grad_output, input_size, memory_format)


def _backward_kernel(
    grad_output: Tensor, index: Tensor, input_size: Sequence[int], memory_format: torch.memory_format
) -> Tensor:
    described = (tuple(input_size), memory_format is not torch.contiguous_format)
    kernel = _core.adaptive_max_pool_backward
    return run_kernel("adaptive_max_pool_backward", kernel, (grad_output, index), described, memory_format)


_backward_operator = Operator(
    "adaptive_max_pool_backward(Tensor grad_output, Tensor index, SymInt[] input_size, "
    "MemoryFormat memory_format) -> Tensor",
    _backward_kernel,
    _backward_reference,
    _backward_fake,
    resize=larger_input,
)


def _keep(_: Any, tensors: Sequence[Tensor], outputs: tuple[Tensor, Tensor]) -> Any:
    (input,) = tensors
    return outputs[1:], (tuple(input.shape), suggest_memory_format(input))


def _gather(input: Tensor, index: Tensor, *_: Any) -> Tensor:
    """Read (N, C, *S) where the pool found its maxima; differentiable itself."""
    return input.flatten(2).gather(2, index.flatten(2).long()).view(index.shape)


linear_pair(_operator_with_index, _backward_operator, _keep, _gather)
find_again(_operator, _operator_with_index)


def _gradient(
    size: tuple[int, ...], memory_format: torch.memory_format, index: Tensor, grad: Tensor
) -> Tensor:
    return _backward_operator(grad, index, size, memory_format)


_plain_call = PlainCall(
    "adaptive_max_pool", _core.plain_adaptive_max_pool, _core.plain_adaptive_max_pool_backward, _gradient
)


def _pool(input: Tensor, size: tuple[int, ...], return_indices: bool) -> tuple[Tensor, Tensor | None]:
    """Pool (N, C, *S)."""
    if not (return_indices or needs_function(input)):
        return _operator(input, size), None
    output, index = _operator_with_index(input, size)
    return output, index.long() if return_indices else None


def _output_size(name: str, output_size: Any, input_size: Sequence[int]) -> tuple[int, ...]:
    """One int per dimension; None keeps the size that the input has."""
    count = len(input_size)
    if not isinstance(output_size, (list, tuple)):
        output_size = (
            (output_size,) * count if output_size is not None else (require_int(name, "output_size", None),)
        )
    if len(output_size) != count:
        raise RuntimeError(f"{name}: output_size must be an int or {count} ints, got {tuple(output_size)}")
    sizes = tuple(
        size if wanted is None else require_int(name, "output_size", wanted)
        for wanted, size in zip(output_size, input_size, strict=True)
    )
    if any(size < 0 for size in sizes):
        raise RuntimeError(f"{name}: output_size must be non-negative, got {sizes}")
    return sizes


def _adaptive(
    name: str, spatial: int, input: Tensor, output_size: Any, return_indices: Any
) -> Tensor | tuple[Tensor, Tensor]:
    if tracing():
        return _TORCH[spatial](input, output_size, return_indices)
    if not fits(input, spatial):
        return as_torch(name, spatial, _TORCH[spatial], input, output_size, return_indices)
    require_bool(name, "return_indices", return_indices)
    size = _output_size(name, output_size, input.shape[-spatial:])
    if plain_torch(input, "adaptive_max_pool") or math.prod(input.shape[-spatial:]) > _MAX_PLANE:
        return _TORCH[spatial](input, size, return_indices=return_indices)
    check_dtype(name, input, FLOATS)
    batched = input.dim() == spatial + 2
    output, indices = _pool(input if batched else input.contiguous().unsqueeze(0), size, return_indices)
    if not batched:
        output, indices = output.squeeze(0), None if indices is None else indices.squeeze(0)
    return output if indices is None else (output, indices)


def _public(
    ours: Callable[..., Any], spatial: int, input: Any, output_size: Any, return_indices: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """The public functions over planes and volumes, `ours`."""
    if return_indices is False:
        output = _plain_call(spatial, input, output_size)
        if output is not NotImplemented:
            return output
    if has_torch_function_unary(input):
        return handle_torch_function(ours, (input,), input, output_size, return_indices)
    check_tensor(ours.__name__, input)
    wide = autocast_to_float32(input) if spatial == 3 else input
    return _adaptive(ours.__name__, spatial, wide, output_size, return_indices)


def adaptive_max_pool1d(
    input: Tensor, output_size: int | Sequence[int], return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Adaptive max pooling over rows, as torch.nn.functional.adaptive_max_pool1d.

    Args: input: (N, C, L) or (C, L), floating point; output_size: an int, or one in a tuple.
    Returns: (N, C, output_size) or (C, output_size); with return_indices also int64 indices.
    Raises: as `adaptive_max_pool2d`.
    """
    if has_torch_function_unary(input):
        arguments = (input, output_size, return_indices)
        return handle_torch_function(adaptive_max_pool1d, (input,), *arguments)
    name = "adaptive_max_pool1d"
    check_tensor(name, input)
    if tracing():
        return _TORCH[1](input, output_size, return_indices)
    if not fits(input, 1):
        return as_torch(name, 1, _TORCH[1], input, output_size, return_indices)
    sizes = output_size if isinstance(output_size, (list, tuple)) else (output_size,)
    if len(sizes) != 1:
        raise RuntimeError(f"{name}: output_size must be one int, got {tuple(sizes)}")
    size = (1, require_int(name, "output_size", sizes[0]))
    result = _adaptive(name, 2, input.unsqueeze(-2), size, return_indices)
    return tuple(t.squeeze(-2) for t in result) if return_indices else result.squeeze(-2)


def adaptive_max_pool2d(
    input: Tensor, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Adaptive max pooling over planes, as torch.nn.functional.adaptive_max_pool2d.

    Args:
        input: (N, C, H, W) or (C, H, W), floating point.
        output_size: an int or a pair (height, width); None in a pair keeps the input's size.
        return_indices: also return the position of each maximum.
    Returns: (N, C, OH, OW) or (C, OH, OW) in the memory format of input; with return_indices also the flat
        int64 index h * W + w of the first maximum of every window, or of its last NaN, exact for every dtype.
    Raises: RuntimeError for a size that torch refuses, NotImplementedError for a dtype that it refuses,
        TypeError for an argument that is not a tensor, int or bool, ValueError for an int of more than 64 bits.
    """
    return _public(adaptive_max_pool2d, 2, input, output_size, return_indices)


def adaptive_max_pool3d(
    input: Tensor, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Adaptive max pooling over volumes, as torch.nn.functional.adaptive_max_pool3d.

    Args: input: (N, C, D, H, W) or (C, D, H, W), floating point; output_size, return_indices: as
        `adaptive_max_pool2d`, with triples (depth, height, width).
    Returns: the same dimensions, pooled, in the memory format of input (torch's result is always contiguous).
    Raises: as `adaptive_max_pool2d`. Autocast on the CPU computes in float32, as torch does.
    """
    return _public(adaptive_max_pool3d, 3, input, output_size, return_indices)
