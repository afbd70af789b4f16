# SPDX-License-Identifier: MIT
"""One linear map per group, as it is written by hand: einsum, or a product with the weight that is summed.

Only the form is looked at in the graph; sizes decide in the new forward, where they are known. A list of Linears keeps
its parameters; they are joined in every forward, which for small ones costs less than the calls that it saves.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap import functional as F

from ...graph.calls import argument
from ...rule import Refusal, Region, Replacement, Rule, Shapes, named
from ...runtime.condition_texts import describe_condition
from ..arithmetic import is_call
from ..closed import closed_region
from .conditions import has_narrow_weight, one_weight_per_group, worth_joining

__all__ = ["RULES", "group_read", "joined_linears"]

_PRODUCTS = (operator.mul, torch.mul, torch.multiply)
_SUMS = (operator.add, torch.add)
_JOINS = (torch.cat, torch.concat, torch.concatenate, torch.stack)


def _is_product(node: Any) -> bool:
    plain = is_call(node, _PRODUCTS, ("mul", "multiply")) and len(node.args) == 2 and not node.kwargs
    return plain and all(isinstance(n, Node) for n in node.args)


def _is_sum_of_last(node: Node) -> bool:
    """x.sum(-1), torch.sum(x, dim=-1), without other options."""
    dim = argument(node, 1, "dim")
    return (
        is_call(node, (torch.sum,), ("sum",))
        and dim in (-1, (-1,), [-1])
        and not set(node.kwargs) - {"dim", "input"}
        and len(node.args) <= 2
    )


def _bias_added(node: Node) -> tuple[Node, Node] | None:
    """(the addition, the parameter) if the only use of a result is to have a parameter added."""
    users = list(node.users)
    if (
        len(users) != 1
        or not is_call(users[0], _SUMS, ("add",))
        or users[0].kwargs
        or len(users[0].args) != 2
    ):
        return None
    other = [n for n in users[0].args if n is not node]
    bias = other[0] if len(other) == 1 and isinstance(other[0], Node) else None
    return (users[0], bias) if bias is not None and bias.op == "get_attr" else None


def _find_summed_product(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        product = argument(node, 0, "input") if _is_sum_of_last(node) else None
        if not _is_product(product):
            continue
        weights = [n for n in product.args if n.op == "get_attr"]
        if len(weights) != 1:
            continue
        (x,) = (n for n in product.args if n is not weights[0])
        added = _bias_added(node)
        if added is not None:
            yield closed_region((x, weights[0], added[1]), (product, node, added[0]), product)
        yield closed_region((x, weights[0]), (product, node), product)


def _prove_summed_product(region: Region, shapes: Shapes) -> Replacement:
    """weight (1, G, d), bias (1, G): one output a group. The condition looks at the sizes."""
    names = ", ".join(f"x{i}" for i in range(len(region.inputs)))
    bias = ", x2.t()" if len(region.inputs) == 3 else ""
    return Replacement(
        f"one_weight_per_group({names})",
        f"grouped_linear(x0, x1.transpose(0, 1){bias}).squeeze(-1)",
        named(F.grouped_linear, one_weight_per_group),
    )


def _find_einsum(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        if is_call(node, (torch.einsum,), ()) and len(node.args) == 3 and not node.kwargs:
            equation, *operands = node.args
            if isinstance(equation, str) and all(isinstance(n, Node) for n in operands):
                yield closed_region(tuple(dict.fromkeys(operands)), (node,), node)


def by_groups(output: Tensor) -> Tensor:
    """(N, G, out) in the memory of (G, N, out), as einsum returns it."""
    return output.transpose(0, 1).contiguous().transpose(0, 1)


def lies_by_groups(input: Any, leads: bool) -> bool:
    """True if einsum's result lies in memory as `by_groups` puts it: for an input of several features, named first."""
    return leads and input.shape[-1] > 1


describe_condition(lies_by_groups, lambda *_: "later code depends on the order of einsum's result in memory")


def _prove_einsum(region: Region, shapes: Shapes) -> Replacement:
    """bgi,goi->bgo or bgi,gio->bgo, with any letters and in either order of the operands."""
    (node,) = region.nodes
    terms, arrow, result = node.args[0].replace(" ", "").partition("->")
    operands = terms.split(",")
    forms = [
        (x, weight, order)
        for x, weight in ((0, 1), (1, 0))
        for order in ("goi", "gio")
        if arrow and len(operands) == 2 and len(region.inputs) == 2
        if _same_pattern((operands[x], operands[weight], result), ("bgi", order, "bgo"))
    ]
    if not forms:
        raise Refusal("not one linear map per group", report=False)
    x, weight, order = forms[0]
    view = f"x{weight}" if order == "goi" else f"x{weight}.transpose(1, 2)"
    condition = f"has_narrow_weight(x{x}, {view})"
    result = f"grouped_linear(x{x}, {view})"
    scope = named(F.grouped_linear, has_narrow_weight, by_groups, lies_by_groups)
    condition_in_order = f"lies_by_groups(x{x}, {x == 0}) and {condition}"
    ordered = Replacement(condition_in_order, f"by_groups({result})", scope)
    return Replacement(condition, result, scope, ordered=ordered)


def _same_pattern(terms: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """True if the terms equal the pattern up to other letters."""
    if [len(t) for t in terms] != [len(p) for p in pattern]:
        return False
    pairs = set(zip("".join(terms), "".join(pattern), strict=True))
    letters = {a for a, _ in pairs}
    return len(pairs) == len(letters) == len({b for _, b in pairs}) and all(a.isalpha() for a in letters)


_WHOLE = slice(None)


def group_read(node: Any, index: int, count: int) -> tuple[Node, Node | None, bool] | None:
    """(source, the node that cuts it if there is one, flat) if node is group `index` of `count` of a source.

    That is x[:, index] or x.unbind(1)[index] of (N, G, in), or x.chunk(count, 1)[index] of a flat (N, G * in).
    """
    if not is_call(node, (operator.getitem,), ()):
        return None
    source, place = node.args
    if bool in map(type, place if isinstance(place, tuple) else (place,)):  # a mask, though True == 1
        return None
    if (
        isinstance(place, tuple)
        and place[:2] == (_WHOLE, index)
        and set(map(str, place[2:])) <= {str(_WHOLE)}
    ):
        return source, None, False
    if place != index or not isinstance(source, Node):
        return None
    if is_call(source, (torch.chunk,), ("chunk",)):
        fits = argument(source, 1, "chunks") == count and argument(source, 2, "dim", 0) in (1, -1)
        return (argument(source, 0, "input"), source, True) if fits else None
    if is_call(source, (torch.unbind,), ("unbind",)) and argument(source, 1, "dim", 0) == 1:
        return argument(source, 0, "input"), source, False
    return None


def _linears_region(join: Node, parts: Sequence[Any]) -> Region | None:
    """Linears, one per group of one tensor, and the join of their results."""
    linear = (torch_functional.linear,)
    if not all(is_call(n, linear, ()) and len(n.args) == 3 and list(n.users) == [join] for n in parts):
        return None
    reads = [group_read(n.args[0], i, len(parts)) for i, n in enumerate(parts)]
    if None in reads or len({(source, flat) for source, _, flat in reads}) != 1:
        return None
    parameters = [p for n in parts for p in n.args[1:] if p is not None]
    if any(p.op != "get_attr" for p in parameters) or len(set(parameters)) < len(parameters):
        return None
    if len({n.args[2] is None for n in parts}) != 1:
        return None
    cuts = [n.args[0] for n in parts] + [cut for _, cut, _ in reads if cut is not None]
    return closed_region((reads[0][0], *parameters), (*cuts, *parts, join), join)


def _find_linears(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        if is_call(node, _JOINS, ()) and argument(node, 1, "dim", 0) in (1, -1):
            parts = argument(node, 0, "tensors")
            if isinstance(parts, (list, tuple)) and len(parts) > 1:
                region = _linears_region(node, parts)
                if region is not None:
                    yield region


def joined_linears(
    input: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], stacked: bool
) -> Tensor:
    """One Linear per group: (N, G, out) if stacked, else the outputs of all groups side by side."""
    bias = torch.cat(biases) if biases else None
    sections = tuple([w.shape[0] for w in weights])
    output = F.grouped_linear(input, torch.cat(weights), bias, sections)
    return output.unflatten(1, (len(weights), sections[0])) if stacked else output


def _prove_linears(region: Region, shapes: Shapes) -> Replacement:
    """Sizes are looked at in the new forward; torch.stack itself requires equal ones."""
    (join,) = region.outputs
    parts = argument(join, 0, "tensors")
    stacked = join.target is torch.stack
    if stacked and argument(join, 1, "dim", 0) != 1:
        raise Refusal("it stacks along another dimension", report=False)
    (flat,) = {group_read(n.args[0], i, len(parts))[2] for i, n in enumerate(parts)}
    names = region.names
    weights = f"({', '.join(names[n.args[1]] for n in parts)},)"
    biases = "()" if parts[0].args[2] is None else f"({', '.join(names[n.args[2]] for n in parts)},)"
    return Replacement(
        f"worth_joining(x0, {weights}, {biases}, {flat})",
        f"joined_linears(x0, {weights}, {biases}, {stacked})",
        named(joined_linears, worth_joining),
    )


RULES = (
    Rule("grouped_linear", False, _find_summed_product, _prove_summed_product),
    Rule("grouped_linear", False, _find_einsum, _prove_einsum),
    Rule("grouped_linear", False, _find_linears, _prove_linears, opens=(nn.Linear,)),
)
