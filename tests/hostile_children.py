# SPDX-License-Identifier: MIT
"""Forwards that count their children, or whose children return something else than a tensor; see hostile_forwards."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, nn

from hostile_forwards import (
    SENTINEL,
    add,
    add_below,
    add_block,
    add_buffer,
    add_layer,
    add_parameter,
    parameter,
    put,
    reorder,
    tie,
)

# --- what is counted ---

add("parameters", lambda s, x: x * len(list(s.parameters())), add_parameter)
add("parameters of a new layer", lambda s, x: x * len(list(s.parameters())), add_layer)
add("parameters further down", lambda s, x: x * len(list(s.parameters())), add_below)
add("parameters, one fewer", lambda s, x: x * len(list(s.parameters())), lambda m: delattr(m, "other"))
add("parameters, tied", lambda s, x: x * len(list(s.parameters())), tie)
add("named parameters", lambda s, x: x * len(dict(s.named_parameters())), add_parameter, add_below)
add("buffers", lambda s, x: x * len(list(s.buffers())), add_buffer, put(bn=lambda: nn.Identity()))
add("named buffers", lambda s, x: x * len(dict(s.named_buffers())), add_buffer)
add("elements", lambda s, x: x * sum(p.numel() for p in s.parameters()), add_parameter)
add("the first parameter", lambda s, x: x * next(s.parameters()).shape[0], put(shift=parameter(5)))
add(
    "its dtype",
    lambda s, x: x.to(next(s.parameters()).dtype),
    lambda m: m.double() and m.conv.float() and None,
)
add("modules", lambda s, x: x * len(list(s.modules())), add_below)
add("named modules", lambda s, x: x * len(dict(s.named_modules())), add_below)
add("children", lambda s, x: x * sum(1 for _ in s.children()), add_layer, lambda m: delattr(m, "other"))
add("named children", lambda s, x: x * len(dict(s.named_children())), add_layer)
add("_modules", lambda s, x: x * len(s._modules), add_layer)
add("a name in _modules", lambda s, x: x * (1 + ("more" in s._modules)), add_layer)
add("the order of children", lambda s, x: x * list(s._modules).index("other"), reorder)
add("layers", lambda s, x: x * (1 + len(s.blocks)), add_block, add_block)
add("layers backwards", lambda s, x: x * (1 + len(list(reversed(s.blocks)))), add_block)
add("names of layers", lambda s, x: x * (1 + len(s.named.keys())), lambda m: m.named.update({"a": nn.ReLU()}))
add("hasattr", lambda s, x: x * (1 + hasattr(s, "another")), add_parameter)
add("getattr", lambda s, x: x * (1 if getattr(s, "another", None) is None else 2), add_parameter)
add("linears", lambda s, x: x * (1 + any(isinstance(m, nn.Linear) for m in s.modules())), add_below)
add(
    "what is None", lambda s, x: x * (1 + sum(p is None for p in (s.shift, s.scale))), put(shift=parameter(5))
)
add(
    "parameters by name",
    lambda s, x: x * len([n for n, _ in s.named_parameters() if "bias" in n]),
    put(shift=parameter(5)),
    lambda m: setattr(m.conv, "bias", None),
)

# --- children that return no tensor, or not always ---


class Maybe(nn.Module):
    """Returns its input, or None."""

    on = False

    def forward(self, x: Tensor) -> Tensor | None:
        return x if self.on else None


class Several(nn.Module):
    """Returns its input n times."""

    n = 2

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,) * self.n


class Named(nn.Module):
    """Returns a dictionary."""

    key = "a"

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {self.key: x}


class Number(nn.Module):
    """Returns a number."""

    k: Any = 2.0

    def forward(self, x: Tensor) -> Any:
        return self.k


def on(m: Any) -> None:
    m.aux.on = True


def if_none(s: Any, x: Tensor) -> Tensor:
    y = s.aux(x)
    return x if y is None else x + y


def if_not_none(s: Any, x: Tensor) -> Tensor:
    y = s.aux(x)
    if y is not None:
        x = x + y
    return x


def plus(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x if y is None else x + y


def matched(s: Any, x: Tensor) -> Tensor:
    match s.aux(x):
        case None:
            return x
        case y:
            return x + y


def two(s: Any, x: Tensor) -> Tensor:
    a, b = s.aux(x)
    return a + b


def first(s: Any, x: Tensor) -> Tensor:
    a, *b = s.aux(x)
    return a * len(b)


maybe, several, named, number = (put(aux=lambda c=c: c()) for c in (Maybe, Several, Named, Number))
add("None", if_none, on, setup=maybe)
add("not None", if_not_none, on, setup=maybe)
add("None at once", lambda s, x: x + (1 if s.aux(x) is None else 2), on, setup=maybe)
add("None in a function", lambda s, x: plus(x, s.aux(x)), on, setup=maybe)
add("None in a list", lambda s, x: sum(y for y in (s.aux(x), x) if y is not None), on, setup=maybe)
add("None in a filter", lambda s, x: sum(filter(lambda y: y is not None, (s.aux(x), x))), on, setup=maybe)
add("None in a match", matched, on, setup=maybe)
add("None by the operator", lambda s, x: x * (2 if operator.is_(s.aux(x), None) else 1), on, setup=maybe)
add(
    "None by default",
    lambda s, x: s.aux(x).get("b") if s.aux(x).get("b") is not None else x,
    lambda m: put(key="b")(m.aux),
    setup=named,
)
add("another class", if_none, lambda m: put(aux=nn.ReLU())(m), setup=maybe)
add("too many values", two, lambda m: put(n=3)(m.aux), setup=several)
add("too few values", two, lambda m: put(n=1)(m.aux), setup=several)
add("the rest of the values", first, lambda m: put(n=3)(m.aux), setup=several)
add("values in a loop", lambda s, x: sum(s.aux(x)), lambda m: put(n=3)(m.aux), setup=several)
add("a key", lambda s, x: x * 2 if "a" in s.aux(x) else x, lambda m: put(key="b")(m.aux), setup=named)
add("a number", lambda s, x: x * s.aux(x), lambda m: put(k=3.0)(m.aux), setup=number)
add("True", lambda s, x: x * 2 if s.aux(x) is True else x, lambda m: put(k=True)(m.aux), setup=number)
add(
    "a tuple",
    lambda s, x: x * (1 + isinstance(s.aux(x), tuple)),
    lambda m: put(aux=nn.ReLU())(m),
    setup=several,
)

# --- identity of tensors and of what they are ---

add("a dtype", lambda s, x: x * 2 if x.dtype is torch.float32 else x)
add("a layout", lambda s, x: x * 2 if x.layout is torch.strided else x)
add("a flag", lambda s, x: x * 2 if x.requires_grad is False else x, lambda m: m.requires_grad_(False))
add("a copy", lambda s, x: x * 2 if x.contiguous() is x else x)
add("the same dtype", lambda s, x: x * 2 if x.to(torch.float32) is x else x)
add("in place", lambda s, x: x * 2 if x.relu_() is x else x)
add("a child's input", lambda s, x: x * 2 if s.seq[0](x) is x else x)
add("a set", lambda s, x: x * len({x, x.contiguous()}))
add("a dict", lambda s, x: x * {x: 2}.get(x.contiguous(), 3))
add("tied weights", lambda s, x: x * 2 if s.other.weight is s.seq[1][0].weight else x, tie)
add("a sentinel", lambda s, x: x * (2 if s.v is SENTINEL else 3), put(v=3), setup=put(v=SENTINEL))
