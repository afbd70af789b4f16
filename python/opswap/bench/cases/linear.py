# SPDX-License-Identifier: MIT
"""Grouped linear maps, against einsum, bmm, baddbmm, a loop of Linears and, for one output, a summed product.

The stock forms get weights in either order, (in, out) and (out, in). Ragged ones pad to the widest group if they
need one size for all, and pick what counts out of the result. Inference is a forward without a graph, a step a forward
and the gradients of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import Case, shape_text

from .calls import DIRECTIONS, Step

__all__ = ["cases"]

# Rows, groups, features in, features out.
_SHAPES = ((64, 12, 256, 100), (64, 80, 768, 1), (64, 100, 768, 10), (256, 16, 64, 64), (8, 12, 32, 10))
_RAGGED = (1, 80, 512, tuple(1 + i % 20 for i in range(80)))
_DIRECTIONS = ("inference", "forward", "backward", "step")
# Of the largest value, after sums of up to 768 terms; some stock forms round half precision more than once.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 5e-2, torch.float16: 1e-2}

Forward = Callable[[], Tensor]
# A forward and the leaves whose gradients are computed, in the order of input, weight, bias.
Form = tuple[Forward, Sequence[Tensor]]


def cases(batch: int) -> Iterator[Case]:
    """Every shape in every dtype, in float64 in two directions; the rows are those of the nets at any batch."""
    for dtype in _TOLERANCE:
        for shape in _SHAPES:
            forms = partial(_uniform, *shape, dtype)
            yield from _each("grouped_linear", shape_text(shape), dtype, forms)
        yield from _each("grouped_linear ragged", "1,80,512,1..20", dtype, partial(_ragged, *_RAGGED, dtype))


def _each(name: str, shape: str, dtype: torch.dtype, forms: Callable[[], dict[str, Form]]) -> Iterator[Case]:
    kind = short_name(dtype)
    for direction in ("inference", "step") if dtype is torch.float64 else _DIRECTIONS:
        build = partial(_build, forms, direction)
        yield Case(name, shape, kind, direction, build, {"opswap": "-"}, tolerance=_TOLERANCE[dtype])


def _leaf(t: Tensor) -> Tensor:
    return t.detach().clone().requires_grad_()


def _uniform(rows: int, groups: int, features: int, outputs: int, dtype: torch.dtype) -> dict[str, Form]:
    x = torch.randn(rows, groups, features, dtype=dtype, requires_grad=True)
    weight = _leaf(torch.randn(groups, outputs, features, dtype=dtype) / features**0.5)
    bias = torch.randn(groups, outputs, dtype=dtype, requires_grad=True)
    turned = _leaf(weight.transpose(1, 2).contiguous())
    weights, biases = [_leaf(w) for w in weight], [_leaf(b) for b in bias]

    def einsum(equation: str, w: Tensor) -> Tensor:
        return torch.einsum(equation, x, w) + bias

    def bmm(columns: Callable[[], Tensor]) -> Tensor:
        return torch.bmm(x.transpose(0, 1), columns()).transpose(0, 1) + bias

    def baddbmm(columns: Callable[[], Tensor]) -> Tensor:
        return torch.baddbmm(bias.unsqueeze(1), x.transpose(0, 1), columns()).transpose(0, 1)

    def loop() -> Tensor:
        return torch.stack([T.linear(x[:, g], weights[g], biases[g]) for g in range(groups)], 1)

    def summed() -> Tensor:
        return ((weight[:, 0] * x).sum(-1) + bias[:, 0]).unsqueeze(-1)

    def ours() -> Tensor:
        return F.grouped_linear(x, weight, bias)

    forms: dict[str, Form] = {"loop": (loop, (x, *weights, *biases))}
    for order, w, columns in (("io", turned, lambda: turned), ("oi", weight, lambda: weight.transpose(1, 2))):
        leaves = (x, w, bias)
        forms[f"einsum {order}"] = partial(einsum, f"bgi,g{order}->bgo", w), leaves
        forms[f"bmm {order}"] = partial(bmm, columns), leaves
        forms[f"baddbmm {order}"] = partial(baddbmm, columns), leaves
    if outputs == 1:
        forms["summed"] = summed, (x, weight, bias)
    return forms | {"opswap": (ours, (x, weight, bias))}


def _ragged(
    rows: int, groups: int, features: int, sections: tuple[int, ...], dtype: torch.dtype
) -> dict[str, Form]:
    x = torch.randn(rows, groups, features, dtype=dtype, requires_grad=True)
    weight = _leaf(torch.randn(sum(sections), features, dtype=dtype) / features**0.5)
    bias = torch.randn(sum(sections), dtype=dtype, requires_grad=True)
    weights, biases = ([_leaf(part) for part in t.split(sections)] for t in (weight, bias))
    widest = max(sections)
    kept = torch.cat([torch.arange(n) + g * widest for g, n in enumerate(sections)])
    padded = torch.zeros(groups * widest, features, dtype=dtype).index_copy(0, kept, weight.detach())
    padded = padded.view(groups, widest, features).requires_grad_()
    shifts = torch.zeros(groups * widest, dtype=dtype).index_copy(0, kept, bias.detach())
    shifts = shifts.view(groups, widest).requires_grad_()

    def loop() -> Tensor:
        return torch.cat([T.linear(x[:, g], weights[g], biases[g]) for g in range(groups)], 1)

    def einsum() -> Tensor:
        return (torch.einsum("bgi,goi->bgo", x, padded) + shifts).flatten(1)[:, kept]

    def bmm() -> Tensor:
        product = torch.bmm(x.transpose(0, 1), padded.transpose(1, 2)).transpose(0, 1)
        return (product + shifts).flatten(1)[:, kept]

    def baddbmm() -> Tensor:
        product = torch.baddbmm(shifts.unsqueeze(1), x.transpose(0, 1), padded.transpose(1, 2))
        return product.transpose(0, 1).flatten(1)[:, kept]

    def ours() -> Tensor:
        return F.grouped_linear(x, weight, bias, sections)

    return {
        "loop": (loop, (x, *weights, *biases)),
        "einsum": (einsum, (x, padded, shifts)),
        "bmm": (bmm, (x, padded, shifts)),
        "baddbmm": (baddbmm, (x, padded, shifts)),
        "opswap": (ours, (x, weight, bias)),
    }


def _build(forms: Callable[[], dict[str, Form]], direction: str) -> dict[str, Callable[[], Tensor]]:
    runs = {
        name: DIRECTIONS[direction](forward, leaves, _gradient(forward()))
        for name, (forward, leaves) in forms().items()
    }
    return runs if direction in ("forward", "inference") else {k: _of_input(run) for k, run in runs.items()}


def _of_input(run: Step) -> Forward:
    """The gradient of the input alone: those of weights lie in another order in every form."""
    return lambda: run()[0]


def _gradient(output: Tensor) -> Tensor:
    """The same in every form."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(output.shape, generator=generator).to(output.dtype)
