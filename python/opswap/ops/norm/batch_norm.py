# SPDX-License-Identifier: MIT
"""BatchNorm and the activation that follows it: one pass for the statistics, one that writes; backward the same.

Saved for the backward are the input, the statistics and the parameters: the activation's slope is found again from
the input, so neither the output nor a mask is kept. Sigmoid's slope alone is found from the output, see `_operators`.
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
    base_apply,
    check_memory,
    needs_graph,
    plain_cpu,
    plain_eager,
    tracing,
    transforms_active,
    without_subclasses,
)
from .._stats import count_reference, reference_forced
from ._activations import activate
from ._arguments import check, check_kinds, count_values, is_covered, moves_apart
from ._moving import is_checkpointed, is_watched, moving_operator
from ._operators import (
    FRESH,
    OVER,
    before_activation,
    given,
    gradient_reads_bias,
    gradients,
    operator,
    run,
    saved_last,
    try_backward,
    try_kernel,
)
from ._reference import reference, update_running

__all__ = ["batch_norm", "batch_norm_act", "batch_norm_relu", "infer", "joins_activation"]

_Vector = Tensor | None


# A training step of these in 16 bits is faster with torch's function after the kernel: the backward of both in one
# computes the exponential twice, which there takes longer than the pass over memory that it saves.
_IN_TWO = ("silu", "gelu", "gelu_tanh")


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


def _moving(
    training: bool, momentum: float, eps: float, activation: str | None, input: Tensor, *vectors: _Vector
) -> tuple[Tensor, Tensor]:
    return moving_operator(input, *vectors, momentum, eps, activation)


class BatchNormAct(Function):
    """The short way of ordinary tensors.

    The statistics are not outputs here: for an output that is not used, autograd would pass zeros to every backward.
    """

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Tensor:
        output, statistics = (_moving if dispatch_modes() else run)(*args)
        ctx.training, _, ctx.eps, activation, input, _, _, weight, bias = args
        ctx.activation = activation
        ctx.save_for_backward(input, statistics, weight, saved_last(activation, bias, output))
        # If its values are not read, it may change before the backward.
        ctx.bias = None if gradient_reads_bias(activation) else bias
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        needed = (ctx.needs_input_grad[4], *ctx.needs_input_grad[7:])
        saved = ctx.saved_tensors  # once: a checkpoint unpacks no tensor twice
        activation, made = ctx.activation, NotImplemented
        if not gradient_reads_bias(activation):
            activation, grad_output = before_activation(activation, saved[3], grad_output)
            saved = (*saved[:3], ctx.bias)
        settings = (ctx.training, ctx.eps, activation)
        if plain_eager() and not torch.is_grad_enabled():
            made = try_backward(*settings, needed, grad_output, *saved)
        if made is NotImplemented:
            made = gradients(saved, settings, needed, grad_output)
        return None, None, None, None, made[0], None, None, made[1], made[2]


_apply = base_apply(BatchNormAct)


def _train(
    training: bool, momentum: float, eps: float, activation: str | None, input: Tensor, *vectors: _Vector
) -> Tensor:
    """With a graph. The slope of most activations is found from the bias, so that autograd does not allow changes of it
    before the backward. Torch's batch norm keeps its weight alone: if only the bias is trained, it may change."""
    if not (_trains_bias_alone(*vectors[2:]) and gradient_reads_bias(activation)):
        return _apply(training, momentum, eps, activation, input, *vectors)
    return activate(_apply(training, momentum, eps, None, input, *vectors), activation)


def _trains_bias_alone(weight: _Vector, bias: _Vector) -> bool:
    return bias is not None and bias.requires_grad and (weight is None or not weight.requires_grad)


def joins_activation(
    activation: str | None, input: Tensor, weight: _Vector, bias: _Vector, graph: bool
) -> bool:
    """True if the kernels compute the normalisation and this activation together in an ordinary call.

    Args: graph: a graph is recorded.
    """
    if activation is None:
        return True
    if not gradient_reads_bias(activation):
        return False
    in_two = activation in _IN_TWO and input.itemsize == 2
    return not (graph and (in_two or _trains_bias_alone(weight, bias)))


def _differentiable(
    training: bool, momentum: float, eps: float, activation: str | None, input: Tensor, *vectors: _Vector
) -> Tensor:
    arguments = (training, momentum, eps, activation, input, *vectors)
    if plain_cpu(given(input, *vectors)) and not transforms_active():
        # The dispatcher finds memory that the extension does not, and the operator words the errors.
        with contextlib.suppress(RuntimeError):
            graph = needs_graph((input, *vectors[2:]))
            return _train(*arguments) if graph else run(*arguments)[0]
    running, parameters = vectors[:2], vectors[2:]
    if training and (is_watched(input, *running) or is_checkpointed(input, *running)):
        graph = needs_graph((input, *parameters))
        return _train(*arguments) if graph else _moving(*arguments)[0]
    fixed = (None, None) if training else running
    output, statistics = operator(input, *fixed, *parameters, eps, activation)
    if training:  # in torch's own operators, which compilers and transforms understand
        _move(statistics, *running, momentum, input)
    return output


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

    Args: as `batch_norm_act`; `inplace` states that nothing else reads `input` afterwards.
    Returns: `input` itself, overwritten, if that can be done: no gradient is needed, and a kernel reads and writes
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
        input: (N, C, *). The kernels support float32, float64, bfloat16 and float16; torch's operator runs for others.
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
            return _train(*arguments)
        if made is not NotImplemented:
            return made
    if has_torch_function((input, *vectors)):
        return handle_torch_function(
            batch_norm_act, (input, *vectors), input, *vectors, training, momentum, eps, activation
        )
    ordinary = without_subclasses((input, *vectors))
    if ordinary is not None:
        return batch_norm_act(*ordinary, training, momentum, eps, activation)
    check_kinds(input, vectors, training, momentum, eps, activation)
    if tracing() or not is_covered(input) or not moves_apart(input, vectors, training):
        return reference(input, *vectors, training, momentum, eps, activation)
    if input.device.type != "cpu" or reference_forced():
        check(input, *vectors, training, eps)
        if not torch.compiler.is_compiling():
            count_reference("batch_norm_act")
        return reference(input, *vectors, training, momentum, eps, activation)
    check(input, *vectors, training, eps)
    # Without a graph torch accepts statistics that require a gradient.
    running = (v.detach() if v is not None and v.requires_grad else v for v in vectors[:2])
    return _differentiable(training, momentum, eps, activation, input, *running, weight, bias)


def _trains_in_16_bits(input: Tensor, weight: _Vector, bias: _Vector) -> bool:
    half = isinstance(input, Tensor) and input.dtype in (torch.bfloat16, torch.float16)
    return half and needs_graph(t for t in (input, weight, bias) if isinstance(t, Tensor))


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
