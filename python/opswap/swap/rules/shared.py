# SPDX-License-Identifier: MIT
"""One activation that several branches compute of the same tensor, as in the cells of NASNet and DARTS.

Each branch of such a cell begins with an activation of its own. Computed once, it is read and written once, and one
result is kept for the backward in place of one per branch. Of the gradients of the branches the sum is taken before the
slope of the activation instead of after it: other readers of the tensor may come in between, so that the last bit
may differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph, Node

from opswap.ops.norm._activations import activate, spell

from ..graph.aliasing import escape_or_write
from ..graph.calls import writes
from ..rule import Refusal, Region, Replacement, Rule, Shapes, Sized, named
from ..runtime.guards import unhooked
from .activation import Activation, activation, activation_of
from .norm import calls_problem, module_calls, modules_between

__all__ = ["RULES", "shared_activations"]


def shared_activations(node: Node) -> list[tuple[Node, ...]]:
    """The calls of one activation each that read a node and write nothing, in the order in which they run."""
    found: dict[Activation, list[Node]] = {}
    if len(node.users) > 1:
        for user in node.users:
            act = activation(user)
            if act is not None and not _in_place(user):
                found.setdefault(act, []).append(user)
    return [tuple(sorted(nodes)) for nodes in found.values() if len(nodes) > 1]


def _in_place(node: Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(node.meta["module"], "inplace", False))
    return writes(node)


def still(act: Activation, modules: tuple[nn.Module, ...]) -> bool:
    """True if the modules compute this activation into new memory."""
    return all(activation_of(m) == act and not getattr(m, "inplace", False) for m in modules)


def activate_once(input: Tensor, act: str, count: int) -> tuple[Tensor, ...]:
    """`count` times the same result."""
    return (activate(input, act),) * count


def _find(graph: Graph) -> Iterator[Region]:
    for node in graph.nodes:
        for nodes in shared_activations(node):
            between = modules_between(nodes)
            yield Region(
                inputs=(node,),
                nodes=nodes,
                outputs=nodes,
                anchor=nodes[0],
                main=nodes[0],
                problem=calls_problem(nodes, between) or _writes(node, nodes),
                modules=module_calls(nodes),
                passed=between,
            )


def _writes(source: Node, nodes: tuple[Node, ...]) -> str:
    writer = escape_or_write(source, nodes)
    return f"{writer} may write to the result that the others read" if writer else ""


def _prove(region: Region, shapes: Shapes) -> Replacement:
    """Two calls of the same function of one tensor, which nothing writes to: no run has to show that they agree."""
    act = activation(region.main)
    if act is None:
        raise Refusal("its activation is not known", report=False)
    calls = ", ".join(f"m{i}" for i, _ in enumerate(region.modules))
    conditions = [f"unhooked({calls})", f"still({act!r}, ({calls},))"] if calls else []
    names = named(unhooked, still, activate_once)
    result = f"activate_once(x0, {spell(*act)!r}, {len(region.nodes)})"
    return Replacement(" and ".join(conditions) or "True", result, names)


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Conv2d(58, 58, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.left(torch_functional.relu(x)) + self.right(torch_functional.relu(x))
        return y


def _example() -> Sized:
    return _Branches(), ((32, 58, 28, 28),)


RULES = (Rule("shared_activation", False, _find, _prove, example=_example, branches=True),)
