# SPDX-License-Identifier: MIT
"""The operators of batch normalisation with their derivatives, and the kernels without the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opswap import _core

from .._function import records_graphs
from .._layout import batch_norm_format, batch_norm_gradient_format, dense_copy, empty, exactly_dense
from .._operator import Operator, join_batch, split_batch
from .._stats import count_kernel
from ._arguments import check
from ._reference import normalize, normalize_backward, normalize_jvp

__all__ = [
    "FRESH",
    "OVER",
    "before_activation",
    "check_backward",
    "description",
    "fake",
    "given",
    "gradient_reads_bias",
    "gradients",
    "operator",
    "run",
    "saved_last",
    "second_gradients",
    "stand_in",
    "try_backward",
    "try_kernel",
    "wanted",
]

_NAME, _BACKWARD = "batch_norm_act", "batch_norm_act_backward"


# Computed by torch, in place on what the normalisation has written, and their slope is found from the output. The
# kernels take an exponential in each direction instead, which is slower than to read the output once more.
_BY_TORCH = ("sigmoid",)
_sigmoid_backward: Any = torch.ops.aten.sigmoid_backward.default


def given(*tensors: Tensor | None) -> list[Tensor]:
    """Those that are not None."""
    return [t for t in tensors if t is not None]


# What the extension's forward returns: a new output, the input overwritten, or (new output, new statistics).
FRESH, OVER, _TRACED = range(3)


def try_kernel(result: int, *arguments: Any) -> Any:
    """The kernel for an ordinary call, whose arguments the extension checks by itself.

    Args: result: FRESH or OVER; arguments: training, momentum, eps, activation, input, running_mean, running_var,
        weight, bias. Nothing but autograd may watch: see `plain_eager`.
    Returns: the output; False if a graph must be recorded; NotImplemented if nothing was done for another
        reason, be it an error.
    """
    by_torch = arguments[3] in _BY_TORCH
    if by_torch:
        arguments = (*arguments[:3], None, *arguments[4:])
    try:
        output = _core.batch_norm(*arguments, result, records_graphs())
    except (TypeError, ValueError, RuntimeError):
        return NotImplemented
    if output is not False and output is not NotImplemented:
        count_kernel(_NAME)
        if by_torch:
            output.sigmoid_()
    return output


def try_backward(*arguments: Any) -> Any:
    """The kernel of the backward in the manner of `try_kernel`, if no graph must be recorded.

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
    by_torch = activation in _BY_TORCH
    options = (training, momentum, eps, None if by_torch else activation)
    made = _core.batch_norm(*options, input, *vectors, _TRACED, False)
    if made is NotImplemented:
        memory_format = batch_norm_format(input)
        dense = dense_copy(input, memory_format)
        output, statistics = _core.batch_norm(*options, dense, *vectors, _TRACED, False)
        made = exactly_dense(output, memory_format), statistics
    count_kernel(_NAME)
    if by_torch:
        made[0].sigmoid_()
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
        memory_format = batch_norm_gradient_format(grad_output, input)
        dense = (dense_copy(t, memory_format) for t in (grad_output, input))
        of_input, *others = _core.batch_norm_backward(*options, *dense, *tensors, False)
        made = (None if of_input is None else exactly_dense(of_input, memory_format), *others)
    count_kernel(_BACKWARD)
    return [t for t in made if t is not None]


def fake(
    input: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    check(input, mean, var, weight, bias, mean is None, eps)
    output = empty(input, input.shape, batch_norm_format(input))
    return output, input.new_empty((2, input.shape[1]), dtype=torch.float64)


def _kernel(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *vectors, eps, activation = arguments
    check(input, *vectors, vectors[0] is None, eps)
    return run(vectors[0] is None, None, eps, activation, input, *vectors)


def _reference(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    check(input, *arguments[:4], arguments[0] is None, arguments[4])
    return normalize(input, *arguments)


def check_backward(name: str, grad_output: Tensor, input: Tensor) -> None:
    """Raises: RuntimeError unless the gradient is one of an output like the input."""
    if grad_output.shape != input.shape or grad_output.dtype != input.dtype:
        raise RuntimeError(
            f"{name}: grad_output {grad_output.dtype} of size {tuple(grad_output.shape)} does not "
            f"fit input {input.dtype} of size {tuple(input.shape)}"
        )


def _backward_fake(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
    check_backward(_BACKWARD, grad_output, input)
    _, weight, bias, *_, needed = arguments
    outputs = (
        empty(input, input.shape, batch_norm_gradient_format(grad_output, input)),
        *(
            None if v is None else torch.empty_like(v, memory_format=torch.contiguous_format)
            for v in (weight, bias)
        ),
    )
    return [t for t, wanted in zip(outputs, needed, strict=True) if wanted and t is not None]


def _backward_kernel(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
    check_backward(_BACKWARD, grad_output, input)
    *tensors, training, eps, activation, needed = arguments
    return run_backward(training, eps, activation, needed, grad_output, input, *tensors)


def _backward_reference(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
    check_backward(_BACKWARD, grad_output, input)
    results = _batched_backward(grad_output, input, *arguments)
    if arguments[-1][0]:
        results[0] = dense_copy(results[0], batch_norm_gradient_format(grad_output, input))
    return results


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
    """In operators that batch, for `torch.autograd.grad(..., is_grads_batched=True)`, whose vmap ignores rules."""
    fixed = None if training else statistics
    grads = normalize_backward(grad_output, input, fixed, weight, bias, eps, activation)
    return wanted(grads, (input, weight, bias), output_mask)


def wanted(
    grads: Sequence[Tensor], kinds: Sequence[Tensor | None], output_mask: Sequence[bool]
) -> list[Tensor]:
    """Those gradients that are required, each in the dtype of its tensor."""
    triples = zip(grads, kinds, output_mask, strict=True)
    return [g.to(k.dtype) for g, k, wanted in triples if wanted and k is not None]


def gradients(
    saved: Sequence[Tensor | None], settings: tuple[Any, ...], needed: Sequence[bool], grad_output: Tensor
) -> list[Tensor | None]:
    """Those of input, weight and bias that are needed, None for the others.

    Args: saved: input, statistics, weight, bias; settings: training, eps, activation.
    """
    input, statistics, *vectors = saved
    if statistics is not None:  # a hook on saved tensors may return other strides
        statistics = statistics.contiguous()
    results = iter(_backward_operator(grad_output, input, statistics, *vectors, *settings, tuple(needed)))
    return [next(results) if wanted else None for wanted in needed]


def description(bias: Tensor | None) -> tuple[Any, ...] | None:
    """What a gradient reads of a bias whose values it does not need, so that they may change meanwhile."""
    return None if bias is None else (tuple(bias.shape), bias.dtype)


def stand_in(described: tuple[Any, ...] | None, input: Tensor, weight: Tensor | None) -> Tensor | None:
    """A bias of this description, whose values nobody reads: the weight, or one without values."""
    if described is None:
        return None
    size, dtype = described
    if weight is not None and weight.dtype is dtype and weight.shape == size:
        return weight
    return input.new_empty(size, dtype=dtype)


def gradient_reads_bias(activation: str | None) -> bool:
    """True if a gradient reads the values of the bias."""
    return activation is not None and activation not in _BY_TORCH


def saved_last(activation: str | None, bias: Tensor | None, output: Tensor) -> Tensor | None:
    """What a gradient reads besides input, statistics and weight: nothing, the output, or the bias."""
    if gradient_reads_bias(activation):
        return bias
    return None if activation is None else output


def before_activation(
    activation: str | None, last: Tensor | None, grad_output: Tensor
) -> tuple[str | None, Tensor]:
    """The activation that is left to the backward of the normalisation, and the gradient that this backward gets.

    Args: last: as `saved_last` returns it.
    """
    if activation not in _BY_TORCH or last is None:
        return activation, grad_output
    return None, _sigmoid_backward(grad_output, last)


def _keep(constants: tuple[Any, ...], tensors: Sequence[Tensor | None], outputs: Any) -> Any:
    """What a gradient reads: of a bias whose values it does not need, the description.

    Every way to record saves as many tensors: a checkpoint may run the forward again in another way.
    """
    input, mean, _, weight, bias = tensors
    saved = (input, outputs[1], weight, saved_last(constants[-1], bias, outputs[0]))
    return saved, (mean is None, *constants, description(bias))


def _gradient(saved: Any, settings: Any, needed: Sequence[bool], grad_output: Tensor) -> Any:
    *settings, activation, described = settings
    if not gradient_reads_bias(activation):
        *tensors, last = saved
        activation, grad_output = before_activation(activation, last, grad_output)
        saved = (*tensors, stand_in(described, tensors[0], tensors[2]))
    settings = (*settings, activation)
    of_input, of_weight, of_bias = gradients(saved, settings, (needed[0], *needed[3:]), grad_output)
    return of_input, None, None, of_weight, of_bias


def _tangent(saved: Sequence[Tensor | None], settings: tuple[Any, ...], *tangents: Tensor | None) -> Tensor:
    *tensors, last = saved
    *options, activation, _ = settings
    of_affine = (tangents[0], *tangents[3:])
    if gradient_reads_bias(activation):
        return normalize_jvp(*saved, *options, activation, of_affine)
    tangent = normalize_jvp(*tensors, None, *options, None, of_affine)
    return before_activation(activation, last, tangent)[1]  # the slope multiplies a tangent too


def second_gradients(
    backward: Callable[..., list[Tensor]],
    saved: Sequence[Tensor | None],
    settings: tuple[Any, ...],
    cotangents: Sequence[Tensor | None],
) -> tuple[Tensor | None, ...]:
    """The gradients of a backward in torch's own operators, one for each tensor saved.

    Args: backward: `backward(*saved, *settings)`; saved: grad_output, input, statistics, weight, bias, of which the
        statistics get none.
    """
    grad_output, input, statistics, weight, bias = saved
    arguments = (grad_output, input, weight, bias)
    there = tuple([t is not None for t in arguments])

    def run_plain(*tensors: Tensor) -> tuple[Tensor, ...]:
        present = iter(tensors)
        grad, x, scale, shift = (next(present) if t else None for t in there)
        return tuple(backward(grad, x, statistics, scale, shift, *settings))

    outputs, pull = torch.func.vjp(run_plain, *given(*arguments))
    filled = [torch.zeros_like(y) if c is None else c for y, c in zip(outputs, cotangents, strict=True)]
    results = iter(pull(tuple(filled)))
    grads = [next(results) if t else None for t in there]
    return *grads[:2], None, *grads[2:]


def _batch(
    run: Callable[..., tuple[Tensor, Tensor]], info: Any, in_dims: Sequence[int | None], *arguments: Any
) -> Any:
    """The mapped dimension joins the channels. Parameters that alone are mapped leave the statistics as they are."""
    *tensors, eps, activation = arguments
    pairs = zip(tensors, in_dims, (1, 0, 0, 0, 0), strict=True)
    output, statistics = (
        split_batch(info, t, 1)
        for t in run(*[join_batch(info, t, d, p) for t, d, p in pairs], eps, activation)
    )
    if any(dim is not None for dim in in_dims[:3]):
        return (output, statistics), (1, 1)
    return (output, statistics.select(1, 0)), (1, None)


# input: (N, C, *); mean, var: (C) statistics to normalise with, None for those of the batch; statistics: (2, C)
# float64, the means and biased variances used. The output and the gradient of input have torch's memory formats, see
# `batch_norm_format`. Gradients if output_mask is False are neither computed nor returned. Under vmap the mapped
# dimension joins the channels.
operator = Operator(
    f"{_NAME}(Tensor input, Tensor? mean, Tensor? var, Tensor? weight, Tensor? bias, float eps, "
    "str? activation) -> (Tensor, Tensor)",
    _kernel,
    _reference,
    fake,
    differentiable=1,
    batch=_batch,
    keep=_keep,
    gradient=_gradient,
    tangent=_tangent,
)
_backward_operator = Operator(
    f"{_BACKWARD}(Tensor grad_output, Tensor input, Tensor statistics, Tensor? weight, Tensor? bias, "
    "bool training, float eps, str? activation, bool[3] output_mask) -> Tensor[]",
    _backward_kernel,
    _backward_reference,
    _backward_fake,
    join=(1, 1, 1, 0, 0),
    split=lambda gradient: 1 if gradient.dim() > 1 else 0,
    batched=_batched_backward,
    keep=lambda constants, tensors, _: (tensors, constants),
    gradient=lambda saved, settings, _, *grads: second_gradients(_batched_backward, saved, settings, grads),
    in_forward_mode=_batched_backward,
)
