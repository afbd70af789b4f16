# SPDX-License-Identifier: MIT
"""The maximum of every plane, with the gradient rule of the operator that it replaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from opswap import _core

from .._derivatives import linear_pair
from .._function import tracing
from .._layout import empty, suggest_memory_format
from .._operator import Operator
from ._arguments import FLOATS, require_bool
from ._call import PlainCall, plain_torch, run_kernel
from .adaptive import adaptive_max_pool2d

__all__ = ["global_max_pool2d"]

_TIES = ("first", "split")


def _reference(input: Tensor) -> Tensor:
    return input.amax((2, 3))


def _fake(input: Tensor) -> Tensor:
    return input.new_empty(input.shape[:2])


def _kernel(input: Tensor) -> Tensor:
    return run_kernel("global_amax", _core.amax, (input,), (), suggest_memory_format(input))


# input: (N, C, H, W), planes not empty; output: (N, C).
_operator = Operator("global_amax(Tensor input) -> Tensor", _kernel, _reference, _fake)


def _tied(input: Tensor, output: Tensor) -> Tensor:
    return input == output[..., None, None]


def _backward_reference(grad_output: Tensor, input: Tensor, output: Tensor) -> Tensor:
    tied = _tied(input, output)
    share = grad_output[..., None, None] / tied.sum((2, 3), keepdim=True)
    return empty(input, input.shape, suggest_memory_format(input)).copy_(share * tied)


def _backward_fake(grad_output: Tensor, input: Tensor, output: Tensor) -> Tensor:
    return empty(input, input.shape, suggest_memory_format(input))


def _backward_kernel(grad_output: Tensor, input: Tensor, output: Tensor) -> Tensor:
    pixels = (t.contiguous().view(*t.shape, 1, 1) for t in (output, grad_output))
    memory_format = suggest_memory_format(input)
    return run_kernel("global_amax_backward", _core.amax_backward, (input, *pixels), (), memory_format)


_backward_operator = Operator(
    "global_amax_backward(Tensor grad_output, Tensor input, Tensor output) -> Tensor",
    _backward_kernel,
    _backward_reference,
    _backward_fake,
)


def _keep(_: Any, tensors: Sequence[Tensor], outputs: tuple[Tensor]) -> Any:
    return (*tensors, *outputs), ()


def _share(grad: Tensor, input: Tensor, output: Tensor) -> Tensor:
    """The mean of `grad` over the pixels that are the maximum of their plane."""
    tied = _tied(input, output)
    return (grad * tied).sum((2, 3)) / tied.sum((2, 3))


linear_pair(_operator, _backward_operator, _keep, _share)


def _backward_of_pixels(input: Tensor, output: Tensor, positions: Tensor, grad_output: Tensor) -> Tensor:
    """Of an output (N, C) or (N, C, 1, 1); differentiable, and without the positions."""
    planes = output.flatten(1)
    # Gradients in a batch, torch.autograd.grad(..., is_grads_batched=True), know no flatten.
    return _backward_operator(grad_output.reshape(planes.shape), input, planes)


_plain_call = PlainCall(
    "global_amax", _core.plain_amax, _core.plain_amax_backward, _backward_of_pixels, keeps_values=True
)


def _amax(input: Tensor) -> Tensor:
    """amax over (2, 3) of (N, C, H, W)."""
    if tracing() or plain_torch(input, "global_amax") or input.dtype not in FLOATS:
        return _reference(input)
    if 0 in input.shape[2:]:
        raise IndexError(f"global_max_pool2d: planes must not be empty, got size {tuple(input.shape)}")
    return _operator(input)


def global_max_pool2d(input: Tensor, *, ties: str = "first", keepdim: bool = True) -> Tensor:
    """The maximum of every plane.

    Args:
        input: (N, C, H, W). ties="first" accepts the dtypes of adaptive_max_pool2d, ties="split" those of amax.
        ties: which pixels get the gradient if several are the maximum: "first" to the first of them, as
            adaptive_max_pool2d(input, 1); "split" in equal shares, as input.amax((2, 3)).
        keepdim: return (N, C, 1, 1) instead of (N, C).
    Returns: (N, C, 1, 1) in the memory format of input, or (N, C); NaN if the plane has one. Of zeros of both
        signs the first one is returned; which one amax returns depends on sizes and strides.
    Raises: ValueError for other ties; RuntimeError for another number of dimensions; TypeError if input is not a tensor
        or keepdim not a bool; else as the operator replaced.
    """
    if ties == "split":
        output = _plain_call(keepdim, input)
        if output is not NotImplemented:
            return output
    if has_torch_function_unary(input):
        return handle_torch_function(global_max_pool2d, (input,), input, ties=ties, keepdim=keepdim)
    if ties not in _TIES:
        raise ValueError(f"global_max_pool2d: ties must be one of {_TIES}, got {ties!r}")
    require_bool("global_max_pool2d", "keepdim", keepdim)
    if not isinstance(input, Tensor):
        raise TypeError(f"global_max_pool2d(): input must be a tensor, got {type(input).__name__}")
    if input.dim() != 4:
        raise RuntimeError(f"global_max_pool2d: expected 4 dimensions, got size {tuple(input.shape)}")
    if ties == "split":
        output = _amax(input)
        return output[..., None, None] if keepdim else output
    output = adaptive_max_pool2d(input, 1)
    return output if keepdim else output.flatten(1)
