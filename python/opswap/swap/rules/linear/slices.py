# SPDX-License-Identifier: MIT
"""One linear map per group, written into slices of a result one group after another, as ML-Decoder's GroupFC does.

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

from ...graph.calls import write_between
from ...graph.metadata import is_metadata
from ...rule import Region, Replacement, Rule, Shapes, named
from ..arithmetic import is_call
from .conditions import can_fill_in_one_write, has_narrow_weight, one_map_per_group, worth_joining
from .products import group_read, joined_linears

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
    """target[:, index] = source[:, index] times a weight, plus a bias if there is one.

    weight and bias: the parameters of all groups, or this group's own if `own`; they have the order (out, in) if
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
    """The operation of the index-th write, if it writes this group."""
    _, place, value = node.args
    if not isinstance(place, tuple) or place[:2] != (_WHOLE, index) or place[2:] not in ((), (_WHOLE,)):
        return None
    if isinstance(place[1], bool):  # a mask, though True == 1
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
    """By torch.nn.functional.linear, with a slice of the parameters, or with its own parameters."""
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
    whole = place[0] == index and set(map(str, place[1:])) <= {str(_WHOLE)}
    return source if whole and not isinstance(place[0], bool) and isinstance(source, Node) else None


def _region(target: Node, writes: Sequence[Node], found: Sequence[_Write]) -> Region:
    """All the writes; the result replaces the target from then on."""
    inside = {n for w in found for n in w.nodes}
    nodes = tuple(n for n in target.graph.nodes if n in inside)
    parameters = dict.fromkeys(p for w in found for p in (w.weight, w.bias) if p is not None)
    read = dict.fromkeys((found[0].source, *parameters))
    problem = write_between(nodes[0], nodes) or _early_use(target, nodes)
    if target in read:
        problem = "the groups are read from the result itself"
    if any(not set(n.users) <= inside for n in inside.difference(writes)):
        problem = problem or "an intermediate result is used elsewhere"
    return Region(
        inputs=(target, *read),
        nodes=nodes,
        outputs=(target,),
        anchor=writes[-1],
        main=writes[0],
        problem=problem,
    )


def _early_use(target: Node, nodes: Sequence[Node]) -> str:
    """Why other code may see the target half written: it uses the target, or holds its memory under another name."""
    inside, last = set(nodes), nodes[-1]
    between = [u for u in target.users if u < last]
    if not _is_fresh(target):
        between += [n for n in target.graph.nodes if nodes[0] < n < last and n.op != "get_attr"]
    early = [n for n in between if n not in inside and not is_metadata(n)]
    return f"{early[0].name} may read the result before all groups are written" if early else ""


def _is_fresh(target: Node) -> bool:
    """True if the forward makes the target itself, so that it is known by no other name."""
    made = target.op == "call_function" and target.target in _FACTORIES
    made = made or (target.op == "call_method" and target.target in _NEW)
    return made and "out" not in target.kwargs


def turned(weight: Tensor) -> Tensor:
    """Weight (G, in, out) in the order (G, out, in), as a view; any other tensor as it is."""
    return weight.transpose(1, 2) if weight.dim() == 3 else weight


def grouped_product(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """input (N, G, in) times weight (G, in, out), plus bias (G, out), to which autocast does nothing."""
    fused = None if torch.is_autocast_enabled(input.device.type) else bias
    if has_narrow_weight(input, turned(weight)):
        output = F.grouped_linear(input, turned(weight), fused)
    else:
        output, fused = torch.bmm(input.transpose(0, 1), weight).transpose(0, 1), None
    return output if bias is fused else output + bias


def filled(target: Tensor, output: Tensor, fresh: bool) -> Tensor:
    """The target after the output was written into it; the output itself if the two cannot be distinguished."""
    same = output.dtype == target.dtype and output.is_contiguous() and target.is_contiguous()
    return output if fresh and same else target.copy_(output)


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """The writes are read off the graph; sizes, dtypes and memory are looked at in the new forward."""
    (target,) = region.outputs
    names = region.names
    writes = [n for n in region.nodes if n.target is operator.setitem]
    found = [_write(node, i, len(writes)) for i, node in enumerate(writes)]
    first, fresh = found[0], _is_fresh(target)
    x = names[first.source]
    parameters = f"({''.join(f'{name}, ' for name in names.values() if name not in ('x0', x))})"
    fits = f"can_fill_in_one_write(x0, {fresh}, {x}, {len(found)}, {parameters})"
    if first.own:
        weights = f"({''.join(f'{names[w.weight]}, ' for w in found)})"
        biases = "()" if first.bias is None else f"({''.join(f'{names[w.bias]}, ' for w in found)})"
        condition = f"worth_joining({x}, {weights}, {biases}, False) and {fits} and alike({weights}, x0)"
        result = f"joined_linears({x}, {weights}, {biases}, True)"
    else:
        weight, bias = names[first.weight], "None" if first.bias is None else names[first.bias]
        view = weight if first.linear else f"turned({weight})"
        condition = f"one_map_per_group({x}, {view}, {bias}) and {fits} and {view}.shape[1] == x0.shape[2]"
        result = f"{'grouped_linear' if first.linear else 'grouped_product'}({x}, {weight}, {bias})"
    return Replacement(condition, f"filled(x0, {result}, {fresh})", dict(_SCOPE))


def alike(weights: Sequence[Tensor], target: Tensor) -> bool:
    """True if every weight (out, in) has as many outputs as the target (N, G, out)."""
    for weight in weights:  # noqa: SIM110 (a generator is not traceable)
        if weight.shape[0] != target.shape[-1]:
            return False
    return True


_SCOPE = named(alike, filled, can_fill_in_one_write, F.grouped_linear, grouped_product)
_SCOPE |= named(joined_linears, worth_joining, one_map_per_group, turned)

RULES = (Rule("grouped_linear", False, _find, _prove, opens=(nn.Linear,)),)
