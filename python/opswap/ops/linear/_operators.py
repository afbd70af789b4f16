# SPDX-License-Identifier: MIT
"""The operators of the family and their batching rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .._derivatives import bilinear_pair
from .._operator import Operator, join_batch
from ._run import NAME, Sections, kernel, kernel_backward, reference, reference_backward

__all__ = ["gradients", "operator"]


def _as_tuple(sections: Sections) -> tuple[int, ...] | None:
    return None if sections is None else tuple(sections)


def _output_size(input: Tensor, weight: Tensor, sections: Sections) -> tuple[int, ...]:
    return (input.shape[0], *weight.shape[:-1])


def _fake(input: Tensor, weight: Tensor, bias: Tensor | None, sections: Sections) -> Tensor:
    return input.new_empty(_output_size(input, weight, sections))


def _unwanted_empty(like: Tensor, outputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """An operator returns tensors only: a tensor without elements represents None."""
    return tuple(like.new_empty(0) if t is None else t for t in outputs)


def _fake_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, sections: Sections, mask: Sequence[bool]
) -> tuple[Tensor, ...]:
    sizes = (input.shape, weight.shape, weight.shape[:-1])
    outputs = [weight.new_empty(size) if wanted else None for size, wanted in zip(sizes, mask, strict=True)]
    return _unwanted_empty(weight, outputs)


def _kernel(input: Tensor, weight: Tensor, bias: Tensor | None, sections: Sections) -> Tensor:
    return kernel(_as_tuple(sections), input, weight, bias)


def _kernel_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, sections: Sections, mask: Sequence[bool]
) -> tuple[Tensor, ...]:
    gradients = kernel_backward(_as_tuple(sections), mask, grad_output, input, weight)
    return _unwanted_empty(grad_output, gradients)


def _reference_backward(*args: Any) -> tuple[Tensor, ...]:
    return _unwanted_empty(args[0], reference_backward(*args))


def _repeat(sections: Sections, count: int) -> Sections:
    return None if sections is None else tuple(sections) * count


def _batch(
    run: Callable[..., Tensor],
    info: Any,
    in_dims: Sequence[int | None],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sections: Sections,
) -> tuple[Tensor, int]:
    """The batching rule: mapped inputs of one weight are more rows, mapped weights are more groups."""
    of_input, of_weight, of_bias = in_dims
    rows_only = of_weight is None and of_bias is None
    place = 0 if rows_only else 1
    rows = join_batch(info, input, of_input, place)
    if not rows_only:
        weight, bias = join_batch(info, weight, of_weight), join_batch(info, bias, of_bias)
        sections = _repeat(sections, info.batch_size)
    output = run(rows, weight, bias, sections)
    return output.unflatten(place, (info.batch_size, output.shape[place] // info.batch_size)), place


def _batch_backward(run: Callable[..., Any], info: Any, in_dims: Sequence[int | None], *args: Any) -> Any:
    """The batching rule of the backward: everything mapped is more groups, as every weight gets its own gradient."""
    *tensors, sections, mask = args
    joined = [join_batch(info, t, d, p) for t, d, p in zip(tensors, in_dims, (1, 1, 0), strict=True)]
    outputs = run(*joined, _repeat(sections, info.batch_size), mask)
    places = tuple([p if wanted else None for p, wanted in zip((1, 0, 0), mask, strict=True)])
    return tuple(
        [
            t if p is None else t.unflatten(p, (info.batch_size, t.shape[p] // info.batch_size))
            for t, p in zip(outputs, places, strict=True)
        ]
    ), places


# input (N, G, in), weight (G, out, in) or (T, in), bias without the last dimension or None, sections None or G numbers
# whose sum is T; returns (N, G, out) or (N, T), contiguous.
operator = Operator(
    f"{NAME}(Tensor input, Tensor weight, Tensor? bias, int[]? sections) -> Tensor",
    _kernel,
    reference,
    _fake,
    batch=_batch,
)
# The gradients of input, weight and bias if mask is True, else empty tensors.
_backward_operator = Operator(
    f"{NAME}_backward(Tensor grad_output, Tensor input, Tensor weight, int[]? sections, bool[3] mask) "
    "-> (Tensor, Tensor, Tensor)",
    _kernel_backward,
    _reference_backward,
    _fake_backward,
    batch=_batch_backward,
)
bilinear_pair(operator, _backward_operator, spares=True)


def gradients(
    saved: Sequence[Tensor], sections: Sections, needed: Sequence[bool], grad_output: Tensor
) -> Sequence[Tensor | None]:
    """Those of input, weight and bias that are needed, None for the others; saved: input and weight."""
    sizes = [t.shape for t in saved]
    return operator.gradient(saved, (sizes, (sections,)), needed, grad_output)
