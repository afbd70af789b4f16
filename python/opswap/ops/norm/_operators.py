# SPDX-License-Identifier: MIT
"""The registered operators of batch normalisation, and the kernels without the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opswap import _core

from .._layout import dense_copy, empty, suggest_memory_format
from .._library import library
from .._stats import count_kernel, count_reference, reference_forced
from ._arguments import check, count_values
from ._reference import normalize, normalize_backward, update_running

__all__ = [
    "FRESH",
    "OVER",
    "backward_operator",
    "fold",
    "moving_operator",
    "operator",
    "run",
    "run_backward",
    "try_backward",
    "try_kernel",
    "unfold",
]

_NAME, _BACKWARD, _MOVING = "batch_norm_act", "batch_norm_act_backward", "batch_norm_act_moving"


# What the extension's forward returns: a new output, the input overwritten, or (new output, new statistics).
FRESH, OVER, _TRACED = range(3)


def try_kernel(result: int, *arguments: Any) -> Any:
    """The kernel for what an ordinary call brings, which the extension finds out by itself.

    Args: result: FRESH or OVER; arguments: training, momentum, eps, activation, input, running_mean, running_var,
        weight, bias. Nothing but autograd may watch: see `plain_eager`.
    Returns: the output; False where a graph must be recorded; NotImplemented where nothing was done for another
        reason, be it an error.
    """
    try:
        output = _core.batch_norm(*arguments, result, torch.is_grad_enabled())
    except (TypeError, ValueError, RuntimeError):
        return NotImplemented
    if output is not False and output is not NotImplemented:
        count_kernel(_NAME)
    return output


def try_backward(*arguments: Any) -> Any:
    """The kernel of the backward in the manner of `try_kernel`, where no graph must be recorded.

    Args: training, eps, activation, needed (three bools), grad_output, input, statistics, weight, bias.
    Returns: gradients of input, weight and bias, None for those not needed; or NotImplemented.
    """
    try:
        gradients = _core.batch_norm_backward(*arguments, True)
    except (TypeError, ValueError, RuntimeError):
        return NotImplemented
    if gradients is not NotImplemented:
        count_kernel(_BACKWARD)
    return gradients


def run(
    training: bool,
    momentum: float | None,
    eps: float,
    activation: str | None,
    input: Tensor,
    *vectors: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The kernel itself: the output and the statistics used; in training, running statistics move.

    Args: momentum: None leaves the running statistics alone; vectors: running_mean, running_var, weight, bias.
    Raises: for all that does not fit, and has done nothing.
    """
    options = (training, momentum, eps, activation)
    made = _core.batch_norm(*options, input, *vectors, _TRACED, False)
    if made is NotImplemented:
        input = dense_copy(input, suggest_memory_format(input))
        made = _core.batch_norm(*options, input, *vectors, _TRACED, False)
    count_kernel(_NAME)
    return made


def run_backward(
    training: bool,
    eps: float,
    activation: str | None,
    needed: Sequence[bool],
    grad_output: Tensor,
    input: Tensor,
    *tensors: Tensor | None,
) -> list[Tensor]:
    """The kernel of the backward: the gradients that are needed, of input, weight and bias.

    Args: tensors: statistics, weight, bias.
    """
    options = (training, eps, activation, tuple(needed))
    made = _core.batch_norm_backward(*options, grad_output, input, *tensors, False)
    if made is NotImplemented:
        memory_format = suggest_memory_format(input)
        dense = (dense_copy(t, memory_format) for t in (grad_output, input))
        made = _core.batch_norm_backward(*options, *dense, *tensors, False)
    count_kernel(_BACKWARD)
    return [t for t in made if t is not None]


def _fake(
    input: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    check(input, mean, var, weight, bias, mean is None, eps)
    output = empty(input, input.shape, suggest_memory_format(input))
    return output, input.new_empty((2, input.shape[1]), dtype=torch.float64)


def _kernel(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    if reference_forced():
        return _counted_reference(input, *arguments)
    *vectors, eps, activation = arguments
    check(input, *vectors, vectors[0] is None, eps)
    return run(vectors[0] is None, None, eps, activation, input, *vectors)


def _counted_reference(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    check(input, *arguments[:4], arguments[0] is None, arguments[4])
    count_reference(_NAME)
    return normalize(input, *arguments)


def _check_backward(grad_output: Tensor, input: Tensor) -> None:
    if grad_output.shape != input.shape or grad_output.dtype != input.dtype:
        raise RuntimeError(
            f"batch_norm_act_backward: grad_output {grad_output.dtype} of size {tuple(grad_output.shape)} does not "
            f"fit input {input.dtype} of size {tuple(input.shape)}"
        )


def _backward_fake(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
    _check_backward(grad_output, input)
    _, weight, bias, *_, needed = arguments
    outputs = (
        empty(input, input.shape, suggest_memory_format(input)),
        *(
            None if v is None else torch.empty_like(v, memory_format=torch.contiguous_format)
            for v in (weight, bias)
        ),
    )
    return [t for t, wanted in zip(outputs, needed, strict=True) if wanted and t is not None]


def _backward_kernel(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
    if reference_forced():
        return _counted_backward(grad_output, input, *arguments)
    _check_backward(grad_output, input)
    *tensors, training, eps, activation, needed = arguments
    return run_backward(training, eps, activation, needed, grad_output, input, *tensors)


def _counted_backward(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
    _check_backward(grad_output, input)
    count_reference(_BACKWARD)
    results = _batched_backward(grad_output, input, *arguments)
    if arguments[-1][0]:
        results[0] = dense_copy(results[0], suggest_memory_format(input))
    return results


def fold(info: Any, tensor: Tensor | None, dim: int | None, channel: int) -> Tensor | None:
    """Under vmap: the mapped dimension joins the channels, which are dimension `channel` of one example."""
    if tensor is None:
        return None
    mapped = (
        tensor.unsqueeze(channel).expand(*tensor.shape[:channel], info.batch_size, *tensor.shape[channel:])
        if dim is None
        else tensor.movedim(dim, channel)
    )
    return mapped.flatten(channel, channel + 1)


def unfold(info: Any, tensor: Tensor, channel: int) -> Tensor:
    """The inverse of `fold`; the mapped dimension stays at `channel`."""
    return tensor.unflatten(channel, (info.batch_size, tensor.shape[channel] // info.batch_size))


def _vmap(info: Any, in_dims: Any, input: Tensor, *arguments: Any) -> Any:
    x = fold(info, input, in_dims[0], 1)
    vectors = (fold(info, v, d, 0) for v, d in zip(arguments[:4], in_dims[1:5], strict=True))
    output, statistics = operator(x, *vectors, *arguments[4:])
    return (unfold(info, output, 1), unfold(info, statistics, 1)), (1, 1)


def _backward_vmap(info: Any, in_dims: Any, grad_output: Tensor, input: Tensor, *arguments: Any) -> Any:
    grad, x = fold(info, grad_output, in_dims[0], 1), fold(info, input, in_dims[1], 1)
    statistics = fold(info, arguments[0], in_dims[2], 1)
    vectors = (fold(info, v, d, 0) for v, d in zip(arguments[1:3], in_dims[3:5], strict=True))
    results = backward_operator(grad, x, statistics, *vectors, *arguments[3:])
    dims = [1 if r.dim() > 1 else 0 for r in results]
    return [unfold(info, r, d) for r, d in zip(results, dims, strict=True)], dims


def _batched_backward(
    grad_output: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    eps: float,
    activation: str | None,
    output_mask: Sequence[bool],
) -> list[Tensor]:
    """In operators that batch, for `torch.autograd.grad(..., is_grads_batched=True)`, whose vmap takes no rule."""
    given = None if training else statistics
    grads = normalize_backward(grad_output, input, given, weight, bias, eps, activation)
    return _wanted(grads, (input, weight, bias), output_mask)


def _wanted(
    grads: Sequence[Tensor], kinds: Sequence[Tensor | None], output_mask: Sequence[bool]
) -> list[Tensor]:
    """Those gradients that are asked for, each in the dtype of what it is the gradient of."""
    triples = zip(grads, kinds, output_mask, strict=True)
    return [g.to(k.dtype) for g, k, wanted in triples if wanted and k is not None]


def _moving_kernel(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    if reference_forced():
        return _counted_moving(input, *arguments)
    *vectors, momentum, eps, activation = arguments
    try:
        return run(True, momentum, eps, activation, input, *vectors)
    except (TypeError, ValueError, RuntimeError):
        check(input, *vectors, True, eps)  # words what the extension refused
        raise


def _counted_moving(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    running_mean, running_var, *parameters, momentum, eps, activation = arguments
    output, statistics = _counted_reference(input, None, None, *parameters, eps, activation)
    update_running(statistics, running_mean, running_var, momentum, count_values(input))
    return output, statistics


def _moving_fake(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    _, _, *parameters, _, eps, activation = arguments
    return _fake(input, None, None, *parameters, eps, activation)


def _define() -> tuple[Any, Any, Any]:
    """Register the operators.

    input: (N, C, *); mean, var: (C) statistics to normalise with, None for those of the batch; statistics: (2, C)
    float64, the means and biased variances used. The output and the gradient of input are dense in the memory format
    of input; gradients where output_mask is False are neither computed nor returned. The moving form
    normalises with the statistics of the batch and moves the running ones: one operator for a dispatch mode in place of
    ten.
    """
    library.define(
        f"{_NAME}(Tensor input, Tensor? mean, Tensor? var, Tensor? weight, Tensor? bias, float eps, "
        "str? activation) -> (Tensor, Tensor)"
    )
    library.define(
        f"{_BACKWARD}(Tensor grad_output, Tensor input, Tensor statistics, Tensor? weight, Tensor? bias, "
        "bool training, float eps, str? activation, bool[3] output_mask) -> Tensor[]"
    )
    implementations = {
        _NAME: (_kernel, _counted_reference, _fake, _vmap),
        _BACKWARD: (_backward_kernel, _counted_backward, _backward_fake, _backward_vmap),
    }
    for name, (kernel, reference, fake, vmap) in implementations.items():
        library.impl(name, kernel, "CPU")
        library.impl(name, reference, "CompositeExplicitAutograd")
        torch.library.register_fake(f"opswap::{name}", fake, lib=library)
        torch.library.register_vmap(f"opswap::{name}", vmap, lib=library)
    library.impl(_BACKWARD, _batched_backward, "Batched")
    library.define(
        f"{_MOVING}(Tensor input, Tensor(a!) running_mean, Tensor(b!) running_var, Tensor? weight, Tensor? bias, "
        "float momentum, float eps, str? activation) -> (Tensor, Tensor)"
    )
    library.impl(_MOVING, _moving_kernel, "CPU")
    library.impl(_MOVING, _counted_moving, "CompositeExplicitAutograd")
    torch.library.register_fake(f"opswap::{_MOVING}", _moving_fake, lib=library)
    ops = torch.ops.opswap
    return ops.batch_norm_act.default, ops.batch_norm_act_backward.default, ops.batch_norm_act_moving.default


operator, backward_operator, moving_operator = _define()
