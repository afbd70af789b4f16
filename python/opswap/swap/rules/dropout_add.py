# SPDX-License-Identifier: MIT
"""Dropout of whole channels and the addition behind it, as in the residual blocks of ERFNet and of BAT-ResNeXt.

torch multiplies by one number per channel, writes the result and adds. torch.addcmul does both in one pass over memory.
The numbers are drawn as torch draws them. A sum may differ in its last bit, gradients do not.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap.ops._function import plain_cpu

from ..graph.calls import subject
from ..rule import Refusal, Region, Replacement, Rule, Shapes, Sized, bound_arguments, named
from ..runtime.condition_texts import describe_condition
from ..runtime.guards import call_problem, unhooked
from ..runtime.shown import shown
from .conditions import poolable
from .kept import elements

__all__ = ["MODULES", "OF_CHANNELS", "RULES"]

# Modules and functions by the dimensions of a batch.
OF_CHANNELS: dict[Any, int] = {
    nn.Dropout1d: 3,
    nn.Dropout2d: 4,
    nn.Dropout3d: 5,
    torch_functional.dropout1d: 3,
    torch_functional.dropout2d: 4,
    torch_functional.dropout3d: 5,
}
MODULES = tuple(kind for kind in OF_CHANNELS if isinstance(kind, type))
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
# Elements from which a step was measured to take torch 1.0 to 2.2 times as long (Zen 4). Of two bytes each it takes 1.2
# to 1.6 times as long for 6,422,528, and 0.9 to 1.1 times for fewer.
_FEWEST = 1 << 19
_FEWEST_HALF = 1 << 22


def drops(module: nn.Module) -> bool:
    """True if the module of torch scales some channels by 0 and the others by more than 1, into new memory."""
    return module.training and not module.inplace and 0 < module.p < 1 and unhooked(module)


def addable(input: Any, other: Any, ndim: int) -> bool:
    """True for two ordinary tensors of one dtype that lie in memory alike, large enough for one pass to pay."""
    if not poolable(input, (ndim,)) or not poolable(other, (ndim,)) or not plain_cpu((input, other)):
        return False
    alike = input.dtype is other.dtype and input.shape == other.shape and input.stride() == other.stride()
    return alike and input.numel() >= _fewest(input)


def _fewest(input: Tensor) -> int:
    return _FEWEST if input.dtype.itemsize > 2 else _FEWEST_HALF


def _not_addable(input: Any, other: Any, ndim: int) -> str:
    small = poolable(input, (ndim,)) and elements(input, _fewest(input))
    return small or f"it adds {shown(input)} and {shown(other)}"


describe_condition(addable, _not_addable)


def dropout_add(input: Tensor, other: Tensor, p: float) -> Tensor:
    """Dropout of whole channels, plus `other`."""
    scales = input.new_empty(input.shape[:2] + (1,) * (input.dim() - 2)).bernoulli_(1 - p).div_(1 - p)
    return torch.addcmul(other, input, scales)


def _find(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        dropped, total = _dropped(node), next(iter(node.users), None)
        if dropped is None or total is None or len(node.users) > 1 or not _adds(total, node):
            continue
        (other,) = (n for n in total.all_input_nodes if n is not node)
        yield Region(
            inputs=tuple(dict.fromkeys((dropped, other, *node.all_input_nodes))),
            nodes=(node, total),
            outputs=(total,),
            anchor=total,
            main=node,
            problem=_problem_of(node, total),
            modules=(node,) if node.op == "call_module" else (),
        )


def _dropped(node: Node) -> Node | None:
    """The tensor that a call of a dropout of channels reads, None for any other node."""
    if node.op == "call_module":
        found = type(node.meta["module"]) in OF_CHANNELS and node.args[0]
    else:
        found = node.op == "call_function" and node.target in OF_CHANNELS and subject(node)
    return found if isinstance(found, Node) else None


def _adds(total: Node, dropped: Node) -> bool:
    """True if a node is a sum of two tensors that writes, if at all, to the first one of `dropped` and another."""
    if total.op not in ("call_function", "call_method") or total.target not in _ADDITIONS:
        return False
    if total.kwargs or len(total.args) != 2 or not all(isinstance(a, Node) for a in total.args):
        return False
    return len(total.all_input_nodes) == 2 and (
        total.args[0] is dropped or total.target not in (operator.iadd, "add_")
    )


def _problem_of(node: Node, total: Node) -> str:
    """Numbers are drawn, and the input is read, where the sum was: nothing may run in between."""
    between = node.next
    while between is not total:
        if between.op.startswith("call"):
            return f"{between.name} runs between the dropout and the addition"
        between = between.next
    return call_problem(node.target, node.meta["module"]) if node.op == "call_module" else ""


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """Two calls of torch's, whose definition says what they compute."""
    node, total = region.nodes
    (other,) = (n for n in total.all_input_nodes if n is not node)
    xs = region.names
    names = named(addable, dropout_add)
    if node.op == "call_module":
        kind: Any = type(node.meta["module"])
        drop, p = "drops(m0)", "m0.p"
        names["drops"] = drops
    else:
        kind = node.target
        drop, p = _of_call(bound_arguments(node, kind), xs)
    return Replacement(
        f"{drop} and addable(x0, {xs[other]}, {OF_CHANNELS[kind]})",
        f"dropout_add(x0, {xs[other]}, {p})",
        names,
    )


def _of_call(given: dict[str, Any], xs: dict[Node, str]) -> tuple[str, str]:
    """The texts of whether a call drops channels, and of its probability."""
    p, training = given["p"], given["training"]
    if training is False or type(p) not in (int, float) or not 0 < p < 1:
        raise Refusal("it returns its input", report=False)
    if given["inplace"] is not False:
        raise Refusal("it writes over its input: with inplace=False it is replaced")
    return xs.get(training, repr(training)), repr(p)


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout2d(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x) + x


def _example() -> Sized:
    return _Residual(), ((32, 64, 56, 56),)


RULES = (Rule("dropout_add", False, _find, _prove, calls=MODULES, example=_example),)
