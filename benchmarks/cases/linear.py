# SPDX-License-Identifier: MIT
"""Grouped linear maps, against einsum, baddbmm, a loop of Linears and, for one output, a summed product.

The stock forms get weights in the order that suits them. Ragged ones pad to the widest group where they need one size
for all, and pick what counts out of the result. A step is the forward with its graph and the gradients of everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from case import Case
from opswap import functional as F

__all__ = ["cases"]

# Rows, groups, features in, features out.
_SHAPES = ((64, 12, 256, 100), (64, 80, 768, 1), (64, 100, 768, 10), (256, 16, 64, 64), (8, 12, 32, 10))
_RAGGED = (1, 80, 512, tuple(1 + i % 20 for i in range(80)))
_DIRECTIONS = ("forward", "inference", "step")
_TOLERANCE = 1e-4

Forward = Callable[[], Tensor]
# A forward and the leaves whose gradients are asked for, in the order of input, weight, bias.
Form = tuple[Forward, Sequence[Tensor]]


def cases(batch: int) -> Iterator[Case]:
    """Every shape in both directions, in float32; their rows are those of the nets, whatever the batch."""
    for shape in _SHAPES:
        yield from _each("grouped_linear", ",".join(map(str, shape)), partial(_uniform, *shape))
    yield from _each("grouped_linear ragged", "1,80,512,1..20", partial(_ragged, *_RAGGED))


def _each(name: str, shape: str, forms: Callable[[], dict[str, Form]]) -> Iterator[Case]:
    for direction in _DIRECTIONS:
        build = partial(_build, forms, direction)
        yield Case(name, shape, "float32", direction, build, {"opswap": "-"}, tolerance=_TOLERANCE)


def _leaf(t: Tensor) -> Tensor:
    return t.detach().clone().requires_grad_()


def _uniform(rows: int, groups: int, features: int, outputs: int) -> dict[str, Form]:
    x = torch.randn(rows, groups, features, requires_grad=True)
    weight = _leaf(torch.randn(groups, outputs, features) / features**0.5)
    bias = torch.randn(groups, outputs, requires_grad=True)
    turned = _leaf(weight.transpose(1, 2).contiguous())
    weights, biases = [_leaf(w) for w in weight], [_leaf(b) for b in bias]

    def einsum() -> Tensor:
        return torch.einsum("bgi,gio->bgo", x, turned) + bias

    def baddbmm() -> Tensor:
        columns = weight.transpose(1, 2)
        return torch.baddbmm(bias.unsqueeze(1), x.transpose(0, 1), columns).transpose(0, 1)

    def loop() -> Tensor:
        return torch.stack([T.linear(x[:, g], weights[g], biases[g]) for g in range(groups)], 1)

    def summed() -> Tensor:
        return ((weight[:, 0] * x).sum(-1) + bias[:, 0]).unsqueeze(-1)

    def ours() -> Tensor:
        return F.grouped_linear(x, weight, bias)

    forms: dict[str, Form] = {"einsum": (einsum, (x, turned, bias)), "baddbmm": (baddbmm, (x, weight, bias))}
    forms["loop"] = loop, (x, *weights, *biases)
    if outputs == 1:
        forms["summed"] = summed, (x, weight, bias)
    return forms | {"opswap": (ours, (x, weight, bias))}


def _ragged(rows: int, groups: int, features: int, sections: tuple[int, ...]) -> dict[str, Form]:
    x = torch.randn(rows, groups, features, requires_grad=True)
    weight = _leaf(torch.randn(sum(sections), features) / features**0.5)
    bias = torch.randn(sum(sections), requires_grad=True)
    weights, biases = ([_leaf(part) for part in t.split(sections)] for t in (weight, bias))
    widest = max(sections)
    kept = torch.cat([torch.arange(n) + g * widest for g, n in enumerate(sections)])
    padded = torch.zeros(groups * widest, features).index_copy(0, kept, weight.detach())
    padded = padded.view(groups, widest, features).requires_grad_()
    shifts = torch.zeros(groups * widest).index_copy(0, kept, bias.detach())
    shifts = shifts.view(groups, widest).requires_grad_()

    def loop() -> Tensor:
        return torch.cat([T.linear(x[:, g], weights[g], biases[g]) for g in range(groups)], 1)

    def einsum() -> Tensor:
        return (torch.einsum("bgi,goi->bgo", x, padded) + shifts).flatten(1)[:, kept]

    def baddbmm() -> Tensor:
        product = torch.baddbmm(shifts.unsqueeze(1), x.transpose(0, 1), padded.transpose(1, 2))
        return product.transpose(0, 1).flatten(1)[:, kept]

    def ours() -> Tensor:
        return F.grouped_linear(x, weight, bias, sections)

    return {
        "loop": (loop, (x, *weights, *biases)),
        "einsum": (einsum, (x, padded, shifts)),
        "baddbmm": (baddbmm, (x, padded, shifts)),
        "opswap": (ours, (x, weight, bias)),
    }


def _build(forms: Callable[[], dict[str, Form]], direction: str) -> dict[str, Callable[[], Tensor]]:
    run = {"forward": _forward, "inference": _inference, "step": _step}[direction]
    return {name: run(forward, leaves) for name, (forward, leaves) in forms().items()}


def _forward(forward: Forward, leaves: Sequence[Tensor]) -> Forward:
    return forward


def _inference(forward: Forward, leaves: Sequence[Tensor]) -> Forward:
    return torch.no_grad()(forward)


def _step(forward: Forward, leaves: Sequence[Tensor]) -> Forward:
    """Returns the gradient of the input: those of weights lie in another order in every form."""
    torch.manual_seed(0)
    gradient = torch.randn_like(forward(), memory_format=torch.contiguous_format)

    def run() -> Tensor:
        return torch.autograd.grad(forward(), leaves, gradient)[0]

    return run
