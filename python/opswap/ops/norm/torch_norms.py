# SPDX-License-Identifier: MIT
"""torch's batch, group and instance norms, for calls whose backward is wrong in torch 2.13."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor
from torch.autograd import Function

from opswap import _core
from opswap._torch import functorch_active

from .._function import base_apply, needs_graph, plain_cpu, tracing
from .._layout import is_strided, suggest_memory_format
from ._arguments import FLOATS, are_vectors
from ._group_reference import normalize_groups_backward

__all__ = [
    "gradient_misread",
    "gradient_missing",
    "torch_batch_norm",
    "torch_group_norm",
    "torch_instance_norm",
    "vector_misread",
]

_compiling = torch.compiler.is_dynamo_compiling

_Vector = Tensor | None


def gradient_missing(
    input: Any, num_groups: Any, weight: Any = None, bias: Any = None, eps: Any = 1e-5
) -> bool:
    """True if torch's backward of group_norm may write a gradient of input that is not there: the process may end.

    Seen with torch 2.13 in channels_last, if weight or bias is asked for a gradient and input is not: as behind frozen
    layers, or by `torch.autograd.grad(loss, [weight, bias])`, which a forward cannot foresee.
    """
    if not torch.is_grad_enabled() or not isinstance(input, Tensor):
        return False
    trained = [t for t in (weight, bias) if isinstance(t, Tensor) and t.requires_grad]
    if not trained or type(num_groups) is not int or num_groups < 1 or not isinstance(eps, float):
        return False
    if not input.is_cpu or not is_strided(input) or input.dtype not in FLOATS:
        return False
    if suggest_memory_format(input) is torch.contiguous_format or input.shape[1] % num_groups:
        return False
    return are_vectors(input, input.shape[1], weight, bias)


class GroupNorm(Function):
    """torch's kernels, whose backward computes the gradient of the input always."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: _Vector, bias: _Vector, groups: int, eps: float) -> Tensor:
        input = input.contiguous(memory_format=suggest_memory_format(input))
        sizes = (input.shape[0], input.shape[1], input.shape[2:].numel(), groups)
        output, mean, deviation = torch.native_group_norm(input, weight, bias, *sizes, eps)
        ctx.sizes, ctx.eps = sizes, eps
        ctx.save_for_backward(input, mean, deviation, weight)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        input, mean, deviation, weight = ctx.saved_tensors
        mask = ctx.needs_input_grad[:3]
        grads: Any
        given = (grad_output, *(t for t in (input, weight) if t is not None))
        if needs_graph(given) or not _core.plain_tensors(given):  # among others, batched gradients
            grads = normalize_groups_backward(grad_output, input, weight, ctx.sizes[3], ctx.eps)
            grads = [g.to(input.dtype if weight is None else weight.dtype) for g in grads]
        else:
            grad_output = grad_output.contiguous(memory_format=suggest_memory_format(input))
            wanted = [True, *mask[1:]]
            grads = torch.ops.aten.native_group_norm_backward.default(
                grad_output, input, mean, deviation, weight, *ctx.sizes, wanted
            )
        return *(g if asked else None for g, asked in zip(grads, mask, strict=True)), None, None


_apply = base_apply(GroupNorm)


def torch_group_norm(
    input: Tensor, num_groups: int, weight: _Vector = None, bias: _Vector = None, eps: float = 1e-5
) -> Tensor:
    """torch.nn.functional.group_norm where `gradient_missing` is true, with a right backward.

    In graphs and under torch.func of contiguous tensors, for which torch's backward is right. torch.jit.trace, which
    runs a model with and without gradients and compares the graphs, gets torch's operator.
    """
    if tracing():
        return torch_functional.group_norm(input, num_groups, weight, bias, eps)
    if plain_cpu([t for t in (input, weight, bias) if t is not None]):
        return _apply(input, weight, bias, num_groups, eps)
    output = torch_functional.group_norm(input.contiguous(), num_groups, weight, bias, eps)
    if not _compiling() and functorch_active():  # torch.vmap, which hides a dimension, cannot convert it
        return output
    return output.contiguous(memory_format=suggest_memory_format(input))


def gradient_misread(input: Any) -> bool:
    """True for a single image: torch's backward of instance_norm reads a gradient in channels_last as if contiguous.

    Seen with torch 2.13: the gradients are wrong then, without a word.
    """
    if tracing() or not torch.is_grad_enabled() or not isinstance(input, Tensor) or not input.is_cpu:
        return False
    return input.dim() in (4, 5) and input.shape[0] == 1


def torch_instance_norm(input: Tensor, *arguments: Any) -> Tensor:
    """torch.nn.functional.instance_norm, with contiguous gradients if it would misread others.

    They are contiguous behind a view of one dimension, in every graph and transform.
    """
    output = torch_functional.instance_norm(input, *arguments)
    return output.flatten().view_as(output) if gradient_misread(input) else output


def vector_misread(input: Any, *vectors: Any) -> bool:
    """True if torch's backward of batch_norm may read these vectors of the channels as if they were contiguous.

    Seen with torch 2.13 in channels_last, of the weight and of given statistics: the gradients are wrong then.
    """
    if all(not isinstance(v, Tensor) or v.is_contiguous() for v in vectors) or not isinstance(input, Tensor):
        return False
    return torch.is_grad_enabled() and input.is_cpu and input.dim() in (4, 5) and is_strided(input)


def torch_batch_norm(
    input: Tensor,
    running_mean: _Vector,
    running_var: _Vector,
    weight: _Vector,
    bias: _Vector,
    training: bool,
    *rest: float,
) -> Tensor:
    """torch.nn.functional.batch_norm where `vector_misread` is true, with a right backward."""
    weight = None if weight is None else weight.contiguous()
    # In training the statistics are written, and not read.
    if not training and running_mean is not None and running_var is not None:
        running_mean, running_var = running_mean.contiguous(), running_var.contiguous()
    return torch_functional.batch_norm(input, running_mean, running_var, weight, bias, training, *rest)
