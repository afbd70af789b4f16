# SPDX-License-Identifier: MIT
"""One linear map a group, written into slices of a result one group after another, as ML-Decoder's GroupFC does.

The loop has to be captured with its number of groups: from the module, or from the sizes of example inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F

from ..match import Region, hazard
from ..runtime import fills, joins, narrow_weight, one_map_a_group
from .linear import group_read, is_call, joined_linears
from .rule import Replacement, Rule, Shapes

__all__ = ["RULES"]

_WHOLE = slice(None)
_FACTORIES = tuple(
    getattr(torch, f"{name}{like}") for name in ("empty", "ones", "zeros") for like in ("", "_like")
)
_FACTORIES += (torch.full, torch.full_like)
_NEW = ("new_empty", "new_full", "new_ones", "new_zeros")
_PRODUCTS = (torch.matmul, torch.mm, operator.matmul)
_SUMS = (operator.add, torch.add)


@dataclass(frozen=True)
class _Write:
    """target[:, index] = source[:, index] times a weight, plus a bias where there is one.

    weight and bias: the parameters of all groups, or this group's own where `own`; they have the order (out, in) where
    `linear`. nodes: everything from reading the group to writing it.
    """

    source: Node
    weight: Node
    bias: Node | None
    own: bool
    linear: bool
    nodes: tuple[Node, ...]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What all writes of a loop have in common."""
        shared = (None, None) if self.own else (self.weight, self.bias)
        return (self.source, *shared, self.own, self.linear, self.bias is None)


def _find(graph: Graph) -> Iterator[Region]:
    for target in graph.nodes:
        writes = [n for n in target.users if n.target is operator.setitem and n.args[0] is target]
        if len(writes) > 1:
            found = [_write(node, i, len(writes)) for i, node in enumerate(writes)]
            if None not in found and len({w.kind for w in found}) == 1:
                yield _region(target, writes, found)


def _write(node: Node, index: int, count: int) -> _Write | None:
    """What the index-th write does, if it is of that group."""
    _, place, value = node.args
    if not isinstance(place, tuple) or place[:2] != (_WHOLE, index) or place[2:] not in ((), (_WHOLE,)):
        return None
    if not isinstance(value, Node) or list(value.users) != [node]:
        return None
    if is_call(value, (torch_functional.linear,), ()):
        return _linear(node, value, index, count)
    bias, added = None, ()
    if is_call(value, _SUMS, ("add",)) and len(value.args) == 2 and not value.kwargs:
        product, summand = value.args
        bias, added = _row(summand, index), (summand, value)
        if bias is None or not isinstance(product, Node) or list(product.users) != [value]:
            return None
        value = product
    if not is_call(value, _PRODUCTS, ("matmul", "mm")) or len(value.args) != 2 or value.kwargs:
        return None
    read, weight = group_read(value.args[0], index, count), _row(value.args[1], index)
    if read is None or weight is None or read[1] is not None or read[2]:
        return None
    return _Write(read[0], weight, bias, False, False, (*value.args, value, *added, node))


def _linear(node: Node, value: Node, index: int, count: int) -> _Write | None:
    """By torch.nn.functional.linear, with a slice of the parameters or parameters of its own."""
    if len(value.args) != 3 or value.kwargs:
        return None
    part, weight, bias = value.args
    read = group_read(part, index, count)
    if read is None or read[1] is not None or read[2]:
        return None
    own = weight.op == "get_attr"
    rows = (weight, bias) if own else (_row(weight, index), None if bias is None else _row(bias, index))
    if (
        rows[0] is None
        or (bias is not None and rows[1] is None)
        or (own and bias is not None and bias.op != "get_attr")
    ):
        return None
    cuts = () if own else tuple(n for n in (weight, bias) if n is not None)
    return _Write(read[0], *rows, own, True, (part, *cuts, value, node))


def _row(node: Any, index: int) -> Node | None:
    """The tensor of which this is row `index`: w[index], w[index, :, :]."""
    if not is_call(node, (operator.getitem,), ()):
        return None
    source, place = node.args
    place = place if isinstance(place, tuple) else (place,)
    rest = set(map(str, place[1:])) <= {str(_WHOLE)}
    return (
        source
        if isinstance(source, Node) and place[0] == index and not isinstance(place[0], bool) and rest
        else None
    )


def _region(target: Node, writes: Sequence[Node], found: Sequence[_Write]) -> Region:
    """All the writes; the result stands for the target from then on."""
    inside = {n for w in found for n in w.nodes}
    nodes = tuple(n for n in target.graph.nodes if n in inside)
    parameters = dict.fromkeys(p for w in found for p in (w.weight, w.bias) if p is not None)
    inputs = tuple(dict.fromkeys((target, found[0].source, *parameters)))
    problem = hazard(nodes[0], nodes)
    order = {n: i for i, n in enumerate(target.graph.nodes)}
    if any(order[u] < order[writes[-1]] for u in target.users if u not in inside):
        problem = problem or "the result is used before all groups are written"
    if any(not set(n.users) <= inside for n in inside.difference(writes)):
        problem = problem or "an intermediate result is used elsewhere"
    return Region(inputs, None, nodes, (target,), writes[-1], writes[0], problem)


def grouped_product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """input (N, G, in) times weight (G, in, out), plus bias (G, out)."""
    turned = weight.transpose(1, 2)
    if narrow_weight(input, turned):
        return F.grouped_linear(input, turned, bias)
    output = torch.bmm(input.transpose(0, 1), weight).transpose(0, 1)
    return output.contiguous() if bias is None else output + bias


def filled(target: Tensor, output: Tensor, fresh: bool) -> Tensor:
    """The target after the output was written into it; the output itself where nobody else has a fresh target."""
    return output.to(target.dtype) if fresh else target.copy_(output)


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """The writes are read off the graph; sizes are looked at in the new forward."""
    (target,) = region.outputs
    names = {node: f"x{i}" for i, node in enumerate(region.inputs)}
    writes = [n for n in region.nodes if n.target is operator.setitem]
    found = [_write(node, i, len(writes)) for i, node in enumerate(writes)]
    first = found[0]
    fresh = target.target in _FACTORIES or (target.op == "call_method" and target.target in _NEW)
    source = names[first.source]
    if first.own:
        weights = f"({', '.join(names[w.weight] for w in found)},)"
        biases = "()" if first.bias is None else f"({', '.join(names[w.bias] for w in found)},)"
        condition = (
            f"joins({source}, {weights}, {biases}, False) and fills(x0, {source}, {len(found)}, *{weights})"
        )
        result = f"joined_linears({source}, {weights}, {biases}, True)"
    else:
        weight, bias = names[first.weight], "None" if first.bias is None else names[first.bias]
        view = f"{weight}.transpose(-1, -2)" if not first.linear else weight
        condition = (
            f"one_map_a_group({source}, {view}, {bias}) and fills(x0, {source}, {len(found)}, {view}[0])"
        )
        function = "grouped_linear" if first.linear else "grouped_product"
        result = f"{function}({source}, {weight}, {bias})"
    scope = {"fills": fills, "joins": joins, "one_map_a_group": one_map_a_group}
    scope |= {"filled": filled, "grouped_product": grouped_product, "joined_linears": joined_linears}
    scope |= {"grouped_linear": F.grouped_linear}
    return Replacement(condition, f"filled(x0, {result}, {fresh})", scope)


RULES = (Rule("grouped_linear", False, _find, _prove, opens=(nn.Linear,)),)
