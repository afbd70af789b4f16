# SPDX-License-Identifier: MIT
"""The operators of the family, and their batching rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._library import library
from .._stats import count_reference, reference_forced
from ._run import NAME, Sections, kernel, kernel_backward, reference, reference_backward

__all__ = ["as_tuple", "backward_operator", "batch", "batch_backward", "operator"]


def as_tuple(sections: Sections) -> tuple[int, ...] | None:
    return None if sections is None else tuple(sections)


def _output_size(input: Tensor, weight: Tensor, sections: Sections) -> tuple[int, ...]:
    return (input.shape[0], *weight.shape[:-1])


def _fake(input: Tensor, weight: Tensor, bias: Tensor | None, sections: Sections) -> Tensor:
    return input.new_empty(_output_size(input, weight, sections))


def _unwanted_empty(like: Tensor, outputs: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """An operator returns tensors only: one without elements stands for None."""
    return tuple(like.new_empty(0) if t is None else t for t in outputs)


def _fake_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, sections: Sections, mask: Sequence[bool]
) -> tuple[Tensor, ...]:
    sizes = (input.shape, weight.shape, weight.shape[:-1])
    outputs = [weight.new_empty(size) if wanted else None for size, wanted in zip(sizes, mask, strict=True)]
    return _unwanted_empty(weight, outputs)


def _define() -> tuple[Any, Any]:
    """Register the operators.

    grouped_linear: input (N, G, in), weight (G, out, in) or (T, in), bias without the last dimension or None, sections
    None or G numbers whose sum is T; returns (N, G, out) or (N, T), contiguous.
    grouped_linear_backward: the gradients of input, weight and bias where mask is True, else empty tensors.
    """
    library.define(f"{NAME}(Tensor input, Tensor weight, Tensor? bias, int[]? sections) -> Tensor")
    library.define(
        f"{NAME}_backward(Tensor grad_output, Tensor input, Tensor weight, int[]? sections, bool[3] mask) "
        "-> (Tensor, Tensor, Tensor)"
    )

    def counted(*args: Any) -> Tensor:
        count_reference(NAME)
        return reference(*args)

    def counted_backward(*args: Any) -> tuple[Tensor, ...]:
        count_reference(f"{NAME}_backward")
        return _unwanted_empty(args[0], reference_backward(*args))

    def on_cpu(input: Tensor, weight: Tensor, bias: Tensor | None, sections: Sections) -> Tensor:
        if reference_forced():
            return counted(input, weight, bias, sections)
        return kernel(as_tuple(sections), input, weight, bias)

    def backward_on_cpu(*args: Any) -> tuple[Tensor, ...]:
        if reference_forced():
            return counted_backward(*args)
        gradients = kernel_backward(as_tuple(args[3]), args[4], *args[:3])
        return _unwanted_empty(args[0], gradients)

    operators = []
    for name, cpu, plain, fake, vmap in (
        (NAME, on_cpu, counted, _fake, _vmap),
        (f"{NAME}_backward", backward_on_cpu, counted_backward, _fake_backward, _vmap_backward),
    ):
        library.impl(name, cpu, "CPU")
        library.impl(name, plain, "CompositeExplicitAutograd")
        torch.library.register_fake(f"opswap::{name}", fake, lib=library)
        torch.library.register_vmap(f"opswap::{name}", vmap, lib=library)
        operators.append(getattr(torch.ops.opswap, name).default)
    return operators[0], operators[1]


def _join(info: Any, t: Tensor | None, dim: int | None, place: int) -> Tensor | None:
    """Under vmap: the mapped dimension joins dimension `place`."""
    if t is None:
        return None
    mapped = t.movedim(dim, place) if dim is not None else t.unsqueeze(place)
    if dim is None:
        sizes = list(mapped.shape)
        sizes[place] = info.batch_size
        mapped = mapped.expand(sizes)
    return mapped.flatten(place, place + 1)


def _repeat(info: Any, sections: Sections) -> Sections:
    return None if sections is None else tuple(sections) * info.batch_size


def batch(
    info: Any,
    in_dims: Sequence[int | None],
    run: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sections: Sections,
) -> tuple[Tensor, int]:
    """The batching rule: mapped inputs of one weight are more rows, mapped weights are more groups."""
    of_input, of_weight, of_bias = in_dims[:3]
    rows_only = of_weight is None and of_bias is None
    place = 0 if rows_only else 1
    rows = _join(info, input, of_input, place)
    if rows_only:
        output = run(rows, weight, bias, sections)
    else:
        weights, biases = _join(info, weight, of_weight, 0), _join(info, bias, of_bias, 0)
        output = run(rows, weights, biases, _repeat(info, sections))
    return output.unflatten(place, (info.batch_size, output.shape[place] // info.batch_size)), place


def batch_backward(
    info: Any,
    in_dims: Sequence[int | None],
    run: Any,
    tensors: Sequence[Tensor],
    sections: Sections,
    mask: Sequence[bool],
) -> tuple[list[Tensor | None], list[int]]:
    """The batching rule of the backward: everything mapped is more groups, as every weight gets its own gradient."""
    joined = [_join(info, t, d, p) for t, d, p in zip(tensors, in_dims, (1, 1, 0), strict=True)]
    places = [1, 0, 0]
    outputs = run(*joined, _repeat(info, sections), mask)
    split = [
        t.unflatten(p, (info.batch_size, t.shape[p] // info.batch_size)) if wanted else t
        for t, p, wanted in zip(outputs, places, mask, strict=True)
    ]
    return split, places


def _vmap(info: Any, in_dims: Any, *args: Any) -> Any:
    return batch(info, in_dims, operator, *args)


def _vmap_backward(info: Any, in_dims: Any, *args: Any) -> Any:
    outputs, places = batch_backward(info, in_dims[:3], backward_operator, args[:3], args[3], args[4])
    return tuple(outputs), tuple(p if m else None for p, m in zip(places, args[4], strict=True))


operator, backward_operator = _define()
