# SPDX-License-Identifier: MIT
"""BatchNorm and the activation that follows it: one pass for the statistics, one that writes; backward the same.

Saved for the backward are the input, the statistics and the parameters: the activation's slope is found again from
the input, so neither the output nor a mask is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .._function import make_apply, needs_graph, plain_cpu, transforms_active
from .._layout import dense_copy, empty, suggest_memory_format
from .._stats import count_reference, reference_forced
from ._arguments import check, check_kinds, count_values
from ._operators import backward_operator, fold, operator, run, run_backward, unfold
from ._reference import normalize_backward, normalize_jvp, reference, update_running

__all__ = ["batch_norm", "batch_norm_act", "batch_norm_relu", "infer"]

_Vector = Tensor | None


def _given(*tensors: _Vector) -> list[Tensor]:
    return [t for t in tensors if t is not None]


# --- forward ---------------------------------------------------------------------------------------------------------


def _forward(
    training: bool,
    momentum: float | None,
    eps: float,
    activation: str | None,
    input: Tensor,
    running_mean: _Vector,
    running_var: _Vector,
    weight: _Vector,
    bias: _Vector,
) -> tuple[Tensor, Tensor]:
    """The output and the statistics used; in training, running statistics move unless momentum is None."""
    vectors = (running_mean, running_var, weight, bias)
    if plain_cpu(_given(input, *vectors)):
        # The dispatcher finds memory that the extension does not, and the operator words the errors.
        with contextlib.suppress(RuntimeError):
            output = empty(input, input.shape, suggest_memory_format(input))
            statistics = torch.empty((2, input.shape[1]), dtype=torch.float64)
            options = (*vectors, training, eps, activation, momentum)
            if run(input, output, statistics, *options):
                return output, statistics
            run(dense_copy(input, suggest_memory_format(input)), output, statistics, *options)
            return output, statistics
    check(input, *vectors, training, eps)
    given = (None, None) if training else (running_mean, running_var)
    output, statistics = operator(input, *given, weight, bias, eps, activation)
    if training and momentum is not None:
        _move(statistics, running_mean, running_var, momentum, input)
    return output, statistics


def _move(
    statistics: Tensor, running_mean: _Vector, running_var: _Vector, momentum: float, input: Tensor
) -> None:
    count = count_values(input)
    if not count or running_mean is None or running_var is None:
        return
    if torch.compiler.is_compiling() or not transforms_active():
        update_running(statistics, running_mean, running_var, momentum, count)
        return
    # A tensor from outside torch.func.grad may be written outside only; statistics have no gradient to lose.
    while torch._C._functorch.is_gradtrackingtensor(statistics):
        statistics = torch._C._functorch.get_unwrapped(statistics)
    wrapped = any(
        map(torch._C._functorch.is_functorch_wrapped_tensor, (statistics, running_mean, running_var))
    )
    with contextlib.nullcontext() if wrapped else torch._C._DisableFuncTorch():
        update_running(statistics, running_mean, running_var, momentum, count)


def _infer_plain(
    input: Tensor,
    output: Tensor,
    vectors: Sequence[_Vector],
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
) -> Tensor | None:
    """The kernel on plain tensors into `output`, no graph and no statistics kept; None where it cannot run so."""
    with contextlib.suppress(RuntimeError):
        if run(input, output, None, *vectors, training, eps, activation, momentum):
            return output
    return None


# --- autograd --------------------------------------------------------------------------------------------------------


def _setup(ctx: Any, args: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    ctx.training, _, ctx.eps, ctx.activation, input, _, _, weight, bias = args
    ctx.mark_non_differentiable(outputs[1])
    ctx.save_for_backward(input, outputs[1], weight, bias)
    ctx.save_for_forward(input, outputs[1], weight, bias)


def _backward(ctx: Any, grad_output: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    input, statistics, weight, bias = ctx.saved_tensors
    needed = (ctx.needs_input_grad[4], *ctx.needs_input_grad[7:])
    arguments = (ctx.training, ctx.eps, ctx.activation, needed, grad_output, input, statistics, weight, bias)
    results = iter(_differentiable_backward(*arguments))
    gradient, *parameters = (next(results) if n else None for n in needed)
    return None, None, None, None, gradient, None, None, *parameters


def _jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, None]:
    input, statistics, weight, bias = ctx.saved_tensors
    given = (tangents[4], *tangents[7:])
    options = (ctx.training, ctx.eps, ctx.activation)
    return normalize_jvp(input, statistics, weight, bias, *options, given), None


def _vmap(info: Any, in_dims: Any, *args: Any) -> Any:
    options, (input, *vectors) = args[:4], args[4:]
    x = fold(info, input, in_dims[4], 1)
    folded = (fold(info, v, d, 0) for v, d in zip(vectors, in_dims[5:], strict=True))
    output, statistics = _differentiable(*options, x, *folded)
    return (unfold(info, output, 1), unfold(info, statistics, 1)), (1, 1)


_apply = make_apply("BatchNormAct", _forward, _setup, _backward, _jvp, _vmap)


def _differentiable(*args: Any) -> tuple[Tensor, Tensor]:
    graph = transforms_active() or needs_graph(_given(args[4], *args[7:]))
    return _apply(*args) if graph else _forward(*args)


def _forward_of_backward(
    training: bool,
    eps: float,
    activation: str | None,
    needed: tuple[bool, bool, bool],
    grad_output: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: _Vector,
    bias: _Vector,
) -> tuple[Tensor, ...]:
    tensors = (input, statistics, weight, bias)
    options = (training, eps, activation, needed)
    if plain_cpu(_given(grad_output, *tensors)):
        with contextlib.suppress(RuntimeError):
            return tuple(run_backward(grad_output, *tensors, *options))
    return tuple(backward_operator(grad_output, *tensors, *options))


def _setup_of_backward(ctx: Any, args: tuple[Any, ...], outputs: Any) -> None:
    ctx.training, ctx.eps, ctx.activation, ctx.needed, *tensors = args
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def _plain_backward(ctx: Any, absent: tuple[bool, ...], statistics: Tensor, *tensors: Tensor) -> Any:
    """The backward of (grad_output, input, weight, bias), those absent left out, in torch's own operators."""
    given = iter(tensors)
    grad_output, input, weight, bias = (None if gone else next(given) for gone in absent)
    fixed = None if ctx.training else statistics
    grads = normalize_backward(grad_output, input, fixed, weight, bias, ctx.eps, ctx.activation)
    kinds = (input, weight, bias)
    return tuple(g.to(k.dtype) for g, k, n in zip(grads, kinds, ctx.needed, strict=True) if n)


def _backward_of_backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
    grad_output, input, statistics, weight, bias = ctx.saved_tensors
    absent = (False, False, weight is None, bias is None)

    def run_plain(*tensors: Tensor) -> Any:
        return _plain_backward(ctx, absent, statistics, *tensors)

    _, pull = torch.func.vjp(run_plain, *_given(grad_output, input, weight, bias))
    results = iter(pull(cotangents))
    grads = [None if gone else next(results) for gone in absent]
    return None, None, None, None, *grads[:2], None, *grads[2:]


def _jvp_of_backward(ctx: Any, *tangents: Any) -> tuple[Tensor, ...]:
    grad_output, input, statistics, weight, bias = ctx.saved_tensors
    absent = (False, False, weight is None, bias is None)
    primals = _given(grad_output, input, weight, bias)
    moved = [t for t, gone in zip((*tangents[4:6], *tangents[7:]), absent, strict=True) if not gone]
    filled = [torch.zeros_like(p) if t is None else t for p, t in zip(primals, moved, strict=True)]

    def run_plain(*tensors: Tensor) -> Any:
        return _plain_backward(ctx, absent, statistics, *tensors)

    return torch.func.jvp(run_plain, tuple(primals), tuple(filled))[1]


def _vmap_of_backward(info: Any, in_dims: Any, *args: Any) -> Any:
    options, (grad_output, input, statistics, weight, bias) = args[:4], args[4:]
    grad, x = fold(info, grad_output, in_dims[4], 1), fold(info, input, in_dims[5], 1)
    results = _differentiable_backward(
        *options,
        grad,
        x,
        fold(info, statistics, in_dims[6], 1),
        fold(info, weight, in_dims[7], 0),
        fold(info, bias, in_dims[8], 0),
    )
    dims = tuple(1 if r.dim() > 1 else 0 for r in results)
    return tuple(unfold(info, r, d) for r, d in zip(results, dims, strict=True)), dims


_apply_backward = make_apply(
    "BatchNormActBackward",
    _forward_of_backward,
    _setup_of_backward,
    _backward_of_backward,
    _jvp_of_backward,
    _vmap_of_backward,
)


def _differentiable_backward(*args: Any) -> tuple[Tensor, ...]:
    # A compiled backward is never differentiated again, and Dynamo cannot trace a Function inside a backward.
    if torch.compiler.is_compiling() or not (transforms_active() or needs_graph(_given(*args[4:]))):
        return _forward_of_backward(*args)
    return _apply_backward(*args)


# --- public functions ------------------------------------------------------------------------------------------------


def _kernel_would_miss(input: Tensor, running_mean: _Vector, running_var: _Vector, eps: float) -> bool:
    """True where something may be wrong that the extension does not look at."""
    if eps <= 0 or running_mean is None or running_var is None or input.dim() < 2:
        return True
    return running_mean.requires_grad or running_var.requires_grad


def infer(
    input: Tensor,
    running_mean: _Vector,
    running_var: _Vector,
    weight: _Vector = None,
    bias: _Vector = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
    *,
    inplace: bool = False,
) -> Tensor:
    """`batch_norm_act` that may write its result over the input.

    Args: as `batch_norm_act`; `inplace` says that nobody else reads `input` any more.
    Returns: `input` itself, overwritten, where that can be done: no gradient is needed, and a kernel reads and writes
        the memory of `input` as it lies. Else a new tensor, and `input` is as before.
    """
    vectors = (running_mean, running_var, weight, bias)
    tensors = _given(input, *vectors)
    if _kernel_would_miss(input, running_mean, running_var, eps):
        check(input, *vectors, training, eps)
    if inplace and not needs_graph(tensors) and plain_cpu(tensors):
        result = _infer_plain(input, input, vectors, training, momentum, eps, activation)
        if result is not None:
            torch.autograd.graph.increment_version(input)
            return result
    return batch_norm_act(input, *vectors, training, momentum, eps, activation)


def batch_norm_act(
    input: Tensor,
    running_mean: _Vector,
    running_var: _Vector,
    weight: _Vector = None,
    bias: _Vector = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
) -> Tensor:
    """torch.nn.functional.batch_norm and the activation after it, in one.

    Args:
        input: (N, C, *) in float32, float64, bfloat16 or float16.
        running_mean, running_var: (C); normalise with them, or in training (both or none) move them in place by
            momentum towards the batch's mean and unbiased variance.
        weight, bias: (C), scale and shift after the normalisation. All four vectors have the dtype of input, or
            float32 for a 16-bit input.
        training: normalise with the mean and the biased variance of the batch.
        momentum: share of the batch in the running statistics.
        eps: added to the variance.
        activation: None, "relu", "relu6" or "hardswish".
    Returns: (N, C, *), dense, memory format and dtype of input. Statistics and sums are good to float64's precision
        and do not depend on the number of threads; arithmetic on values is float32, or float64 for float64.
    Raises: as torch.nn.functional.batch_norm: ValueError for one value a channel in training; RuntimeError for
        running statistics missing in evaluation, sizes and dtypes of vectors; NotImplementedError for integers;
        also ValueError for an unknown activation, TypeError for what is no tensor, bool or number.
    Source: Ioffe and Szegedy 2015, Batch Normalization, algorithm 1; section 4.1 for the gradient.
    """
    vectors = (running_mean, running_var, weight, bias)
    if has_torch_function((input, *vectors)):
        arguments = (input, *vectors, training, momentum, eps, activation)
        return handle_torch_function(batch_norm_act, (input, *vectors), *arguments)
    check_kinds(input, vectors, training, momentum, eps, activation)
    if input.device.type != "cpu" or reference_forced():
        check(input, *vectors, training, eps)
        if not torch.compiler.is_compiling():
            count_reference("batch_norm_act")
        return reference(input, *vectors, training, momentum, eps, activation)
    if torch.compiler.is_compiling() or transforms_active():
        return _traced(input, *vectors, training, momentum, eps, activation)
    if _kernel_would_miss(input, running_mean, running_var, eps):
        check(input, *vectors, training, eps)
    tensors = _given(input, *vectors)
    if not needs_graph(tensors) and plain_cpu(tensors):
        output = empty(input, input.shape, suggest_memory_format(input))
        result = _infer_plain(input, output, vectors, training, momentum, eps, activation)
        if result is not None:
            return result
    return _differentiable(training, momentum, eps, activation, input, *vectors)[0]


def _traced(
    input: Tensor,
    running_mean: _Vector,
    running_var: _Vector,
    weight: _Vector,
    bias: _Vector,
    training: bool,
    momentum: float,
    eps: float,
    activation: str | None,
) -> Tensor:
    """The running statistics move in torch's own operators, which compilers and transforms understand."""
    check(input, running_mean, running_var, weight, bias, training, eps)
    given = (None, None) if training else (running_mean, running_var)
    output, statistics = _differentiable(training, None, eps, activation, input, *given, weight, bias)
    if training:
        _move(statistics, running_mean, running_var, momentum, input)
    return output


def batch_norm(
    input: Tensor,
    running_mean: _Vector,
    running_var: _Vector,
    weight: _Vector = None,
    bias: _Vector = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.batch_norm: `batch_norm_act` without an activation."""
    return batch_norm_act(input, running_mean, running_var, weight, bias, training, momentum, eps)


def batch_norm_relu(
    input: Tensor,
    running_mean: _Vector,
    running_var: _Vector,
    weight: _Vector = None,
    bias: _Vector = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`batch_norm_act` with activation "relu"."""
    return batch_norm_act(input, running_mean, running_var, weight, bias, training, momentum, eps, "relu")
