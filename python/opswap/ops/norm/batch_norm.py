# SPDX-License-Identifier: MIT
"""BatchNorm and the activation that follows it: one pass for the statistics, one that writes; backward the same.

Saved for the backward are the input, the statistics and the parameters: the activation's slope is found again from
the input, so neither the output nor a mask is kept.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from opswap._torch import dispatch_modes, without_transforms

from .._function import (
    check_memory,
    make_apply,
    needs_graph,
    plain_cpu,
    plain_eager,
    tracing,
    transforms_active,
)
from .._stats import count_reference, reference_forced
from ._activations import activate
from ._arguments import check, check_kinds, count_values, is_covered, moves_apart
from ._operators import (
    FRESH,
    OVER,
    backward_operator,
    fold,
    moving_operator,
    operator,
    run,
    run_backward,
    try_backward,
    try_kernel,
    unfold,
)
from ._reference import normalize_backward, normalize_jvp, reference, update_running

__all__ = ["batch_norm", "batch_norm_act", "batch_norm_relu", "infer"]

_Vector = Tensor | None


# A training step of these in 16 bits is faster with torch's function behind the kernel: the backward of both in one
# computes the exponential twice, which there takes longer than the pass over memory that it saves.
_IN_TWO = ("silu", "gelu", "gelu_tanh")


def _given(*tensors: _Vector) -> list[Tensor]:
    return [t for t in tensors if t is not None]


# --- forward ---------------------------------------------------------------------------------------------------------


def _forward(
    training: bool,
    momentum: float | None,
    eps: float,
    activation: str | None,
    input: Tensor,
    *vectors: _Vector,
) -> tuple[Tensor, Tensor]:
    """The output and the statistics used; in training, running statistics move unless momentum is None."""
    if plain_cpu(_given(input, *vectors)):
        # The dispatcher finds memory that the extension does not, and the operator words the errors.
        with contextlib.suppress(RuntimeError):
            return run(training, momentum, eps, activation, input, *vectors)
    running, parameters = vectors[:2], vectors[2:]
    if training and momentum is not None and _is_watched(input, *running):
        return moving_operator(input, *vectors, momentum, eps, activation)
    given = (None, None) if training else running
    output, statistics = operator(input, *given, *parameters, eps, activation)
    if training and momentum is not None:
        _move(statistics, *running, momentum, input)
    return output, statistics


def _is_watched(*tensors: _Vector) -> bool:
    """True if dispatch modes alone watch over operators, and all the tensors are ordinary ones."""
    if torch.compiler.is_compiling() or transforms_active() or not dispatch_modes():
        return False
    return all(type(t) is Tensor for t in tensors)


def _move(
    statistics: Tensor, running_mean: _Vector, running_var: _Vector, momentum: float, input: Tensor
) -> None:
    count = count_values(input)
    if not count or running_mean is None or running_var is None:
        return
    check_memory("batch_norm", running_mean=running_mean, running_var=running_var)
    if torch.compiler.is_compiling() or not transforms_active():
        update_running(statistics, running_mean, running_var, momentum, count)
        return
    # Statistics have no gradient to lose.
    statistics, outside = without_transforms(statistics, running_mean, running_var)
    with outside:
        update_running(statistics, running_mean, running_var, momentum, count)


# --- autograd --------------------------------------------------------------------------------------------------------


def _setup(ctx: Any, args: tuple[Any, ...], outputs: tuple[Tensor, Tensor]) -> None:
    ctx.training, _, ctx.eps, ctx.activation, input, _, _, weight, bias = args
    ctx.mark_non_differentiable(outputs[1])
    ctx.set_materialize_grads(False)  # the statistics get none
    ctx.save_for_backward(input, outputs[1], weight, bias)
    ctx.save_for_forward(input, outputs[1], weight, bias)


def _backward(ctx: Any, grad_output: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return (None,) * 9
    needed = (ctx.needs_input_grad[4], *ctx.needs_input_grad[7:])
    arguments = (ctx.training, ctx.eps, ctx.activation, needed, grad_output, *ctx.saved_tensors)
    made = try_backward(*arguments) if plain_eager() and not torch.is_grad_enabled() else NotImplemented
    if made is NotImplemented:
        results = iter(_differentiable_backward(*arguments))
        made = [next(results) if n else None for n in needed]
    return None, None, None, None, made[0], None, None, made[1], made[2]


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


class BatchNormAct(Function):
    """The same for calls that `try_kernel` has found ordinary.

    The statistics are no output here: for an output that nobody uses, every backward is given zeros.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        output, statistics = run(*args)
        ctx.training, _, ctx.eps, ctx.activation, input, _, _, weight, bias = args
        ctx.save_for_backward(input, statistics, weight, bias)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, grad_output)


def _differentiable(*args: Any) -> tuple[Tensor, Tensor]:
    graph = transforms_active() or needs_graph(_given(args[4], *args[7:]))
    return _apply(*args) if graph else _forward(*args)


def _forward_of_backward(*args: Any) -> tuple[Tensor, ...]:
    options, tensors = args[:4], args[4:]
    if plain_cpu(_given(*tensors)):
        with contextlib.suppress(RuntimeError):
            return tuple(run_backward(*args))
    return tuple(backward_operator(*tensors, *options))


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
    if inplace and plain_eager():
        options = (training, momentum, eps, activation)
        made = try_kernel(OVER, *options, input, running_mean, running_var, weight, bias)
        if made is input:
            torch.autograd.graph.increment_version(input)
            return input
    return batch_norm_act(input, running_mean, running_var, weight, bias, training, momentum, eps, activation)


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
        input: (N, C, *). The kernels take float32, float64, bfloat16 and float16; torch's operator runs for others.
        running_mean, running_var: (C); normalise with them, or in training (both or none) move them in place by
            momentum towards the batch's mean and unbiased variance.
        weight, bias: (C), scale and shift after the normalisation. All four vectors have the dtype of input, or
            float32 for a 16-bit input.
        training: normalise with the mean and the biased variance of the batch.
        momentum: share of the batch in the running statistics.
        eps: added to the variance.
        activation: None, or one of "relu", "relu6", "hardswish", "leaky_relu", "hardtanh", "hardsigmoid", "sigmoid",
            "silu", "elu", "gelu", "gelu_tanh", "mish" and "softplus", with torch's values of their parameters, or
            with other ones: "leaky_relu(negative_slope)", "hardtanh(min_val, max_val)", "elu(alpha)",
            "softplus(beta, threshold)", as in "hardtanh(-2.0, 2.0)".
    Returns: (N, C, *), dense, memory format and dtype of input. Statistics and sums are good to float64's precision
        and do not depend on the number of threads; arithmetic on values is float32, or float64 for float64.
    Raises: as torch.nn.functional.batch_norm: ValueError for one value per channel in training; RuntimeError for
        running statistics missing in evaluation, sizes and dtypes of vectors; NotImplementedError for integers;
        also ValueError for an unknown activation, TypeError for an argument that is not a tensor, bool or number.
    Source: Ioffe and Szegedy 2015, Batch Normalization, algorithm 1; section 4.1 for the gradient.
    """
    vectors = (running_mean, running_var, weight, bias)
    if activation in _IN_TWO and _trains_in_16_bits(input, weight, bias):
        return activate(batch_norm(input, *vectors, training, momentum, eps), activation)
    arguments = (training, momentum, eps, activation, input, *vectors)
    if plain_eager():
        made = try_kernel(FRESH, *arguments)
        if made is False:
            return BatchNormAct.apply(*arguments)
        if made is not NotImplemented:
            return made
    if has_torch_function((input, *vectors)):
        return handle_torch_function(
            batch_norm_act, (input, *vectors), input, *vectors, training, momentum, eps, activation
        )
    check_kinds(input, vectors, training, momentum, eps, activation)
    if tracing() or not is_covered(input) or not moves_apart(input, vectors, training):
        return reference(input, *vectors, training, momentum, eps, activation)
    if input.device.type != "cpu" or reference_forced():
        check(input, *vectors, training, eps)
        if not torch.compiler.is_compiling():
            count_reference("batch_norm_act")
        return reference(input, *vectors, training, momentum, eps, activation)
    if not (training and _is_watched(input, running_mean, running_var)):  # whose operator checks all that
        check(input, *vectors, training, eps)
    if torch.compiler.is_compiling() or transforms_active():
        return _traced(*arguments)
    return _differentiable(*arguments)[0]


def _trains_in_16_bits(input: Tensor, weight: _Vector, bias: _Vector) -> bool:
    half = isinstance(input, Tensor) and input.dtype in (torch.bfloat16, torch.float16)
    return half and needs_graph(t for t in (input, weight, bias) if isinstance(t, Tensor))


def _traced(
    training: bool, momentum: float, eps: float, activation: str | None, input: Tensor, *vectors: _Vector
) -> Tensor:
    """The running statistics move in torch's own operators, which compilers and transforms understand."""
    running, parameters = vectors[:2], vectors[2:]
    given = (None, None) if training else running
    output, statistics = _differentiable(training, None, eps, activation, input, *given, *parameters)
    if training:
        _move(statistics, *running, momentum, input)
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
