# SPDX-License-Identifier: MIT
"""What a rule is: where to look, how to be sure, what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import Graph, Node

from .graph.calls import Region

__all__ = ["Example", "Replacement", "Rule", "Shapes"]

Shapes = Mapping[Node, tuple[int, ...]]
Example = Callable[[], tuple[nn.Module, tuple[tuple[int, ...], ...]]]


@dataclass(frozen=True)
class Replacement:
    """A call in place of a region, as Python text over its inputs x0, x1, ... and its modules m0, m1, ...

    condition: true where the proof holds; elsewhere the region's own code runs.
    result: one value for a region with one output, a sequence for more.
    names: the objects that the two texts mention.
    contiguous: true where the outputs are, for code that returns contiguous ones whatever it is given; "" elsewhere.
    label: "rule | module path", for the comment above the generated code; the planner sets it.
    """

    condition: str
    result: str
    names: Mapping[str, Any]
    contiguous: str = ""
    label: str = ""


def _find_nothing(graph: Graph) -> Iterable[Region]:
    return ()


def _take_all(module: nn.Module) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """One kind of rewrite.

    find: yields candidate regions of a captured graph, which may overlap.
    prove: returns the replacement of one, or raises `prove.Refusal`; it also gets the sizes of the graph's
        tensors where a run has shown them.
    exact: the replacement's outputs and gradients are bit-equal to the region's.
    example: makes a module that the rule changes and the sizes of its inputs, for `opswap.tune` to time.
    modules: classes of torch whose own forward is looked at too, on instances of exactly these classes.
    calls: classes of torch whose calls `find` looks for; a Sequential that holds one is looked at too.
    opens: classes of torch whose calls, where a torch.nn.ModuleList holds several, are looked at as part of the
        forward that makes them.
    whole: in place of the whole forward of instances of exactly `modules`, which has no graph; x0 is its
        input and m0 the module.
    takes: of these instances, those that `whole` is for.
    inference: the condition holds only where no gradient is needed; elsewhere the modules of the region are
        called, and may have a `whole` of another rule.
    devices: types of devices, such as ("cpu",), on which the replacement is faster; () is every device.
    """

    name: str
    exact: bool
    find: Callable[[Graph], Iterable[Region]] = _find_nothing
    prove: Callable[[Region, Shapes], Replacement] | None = None
    modules: tuple[type[nn.Module], ...] = ()
    example: Example | None = None
    calls: tuple[type[nn.Module], ...] = ()
    opens: tuple[type[nn.Module], ...] = ()
    whole: Replacement | None = None
    takes: Callable[[nn.Module], bool] = _take_all
    inference: bool = False
    devices: tuple[str, ...] = ()
