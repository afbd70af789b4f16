# SPDX-License-Identifier: MIT
"""The maximum of every plane, with the gradient rule of the operator that it replaces."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function_unary

from opswap import _core

from .._function import base_apply, tracing
from .._layout import suggest_memory_format
from ._arguments import FLOATS, require_bool
from ._call import (
    batch_together,
    differentiable,
    empty,
    plain_call,
    plain_gradient,
    plain_made,
    plain_torch,
    register,
    run_kernel,
    split_batch,
)
from .adaptive import adaptive_max_pool2d

__all__ = ["global_max_pool2d"]

_TIES = ("first", "split")


def _reference(input: Tensor) -> Tensor:
    return input.amax((2, 3))


def _fake(input: Tensor) -> Tensor:
    return input.new_empty(input.shape[:2])


def _kernel(input: Tensor) -> Tensor:
    return run_kernel("global_amax", _core.amax, (input,), (), suggest_memory_format(input))


def _vmap(info: Any, in_dims: Any, input: Tensor) -> Any:
    return split_batch(info, _operator(batch_together(info, input, in_dims[0]))), 0


# input: (N, C, H, W), planes not empty; output: (N, C).
_operator = register("global_amax(Tensor input) -> Tensor", _kernel, _reference, _fake, _vmap)


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


def _backward_vmap(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
    joined = (batch_together(info, t, dim) for t, dim in zip(tensors, in_dims, strict=True))
    return split_batch(info, _backward_operator(*joined)), 0


_backward_operator = register(
    "global_amax_backward(Tensor grad_output, Tensor input, Tensor output) -> Tensor",
    _backward_kernel,
    _backward_reference,
    _backward_fake,
    _backward_vmap,
)


def _setup(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(args[0], output)
    ctx.save_for_forward(args[0], output)


def _backward(ctx: Any, grad_output: Tensor) -> Tensor:
    return _differentiable_backward(*ctx.saved_tensors, grad_output)


def _jvp(ctx: Any, tangent: Tensor) -> Tensor:
    return _share(tangent, *ctx.saved_tensors)


def _share(grad: Tensor, input: Tensor, output: Tensor) -> Tensor:
    """The mean of `grad` over the pixels that are the maximum of their plane."""
    tied = _tied(input, output)
    return (grad * tied).sum((2, 3)) / tied.sum((2, 3))


def _forward_of_backward(input: Tensor, output: Tensor, grad_output: Tensor) -> Tensor:
    return _backward_operator(grad_output, input, output)


def _setup_of_backward(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*args[:2])
    ctx.save_for_forward(*args[:2])


def _backward_of_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return None, None, _share(grad, *ctx.saved_tensors)


def _forward(input: Tensor) -> Tensor:
    return _operator(input)


def _jvp_of_backward(ctx: Any, *tangents: Any) -> Tensor:
    return _differentiable_backward(*ctx.saved_tensors, tangents[-1])


def _vmap_function(info: Any, in_dims: Any, input: Tensor) -> Any:
    return split_batch(info, _differentiable(batch_together(info, input, in_dims[0]))), 0


def _vmap_of_backward(info: Any, in_dims: Any, *tensors: Tensor) -> Any:
    joined = (batch_together(info, t, dim) for t, dim in zip(tensors, in_dims, strict=True))
    return split_batch(info, _differentiable_backward(*joined)), 0


_differentiable = differentiable("GlobalAmax", _forward, _setup, _backward, _jvp, _vmap_function)
_differentiable_backward = differentiable(
    "GlobalAmaxBackward",
    _forward_of_backward,
    _setup_of_backward,
    _backward_of_backward,
    _jvp_of_backward,
    _vmap_of_backward,
)


def _backward_of_pixels(input: Tensor, output: Tensor, positions: Tensor, grad_output: Tensor) -> Tensor:
    """Of an output (N, C) or (N, C, 1, 1); differentiable, and without the positions."""
    planes = output.flatten(1)
    # Gradients in a batch, torch.autograd.grad(..., is_grads_batched=True), know no flatten.
    return _differentiable_backward(input, planes, grad_output.reshape(planes.shape))


class _GlobalAmax(Function):
    """Where `plain_eager` holds."""

    @staticmethod
    def forward(ctx: Any, keepdim: bool, input: Tensor) -> Tensor:
        output, positions = plain_made("global_amax", _core.plain_amax(keepdim, input, True))
        ctx.save_for_backward(input, output, positions)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        arguments = (*ctx.saved_tensors, grad_output)
        kernel = _core.plain_amax_backward
        return None, plain_gradient("global_amax_backward", kernel, _backward_of_pixels, *arguments)


_apply_plain = base_apply(_GlobalAmax)


def _amax(input: Tensor) -> Tensor:
    """amax over (2, 3) of (N, C, H, W)."""
    if tracing() or plain_torch(input, "global_amax") or input.dtype not in FLOATS:
        return _reference(input)
    if 0 in input.shape[2:]:
        raise IndexError(f"global_max_pool2d: planes must not be empty, got size {tuple(input.shape)}")
    return _differentiable(input)


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
        output = plain_call("global_amax", _core.plain_amax, _apply_plain, keepdim, input)
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
