# SPDX-License-Identifier: MIT
"""What a rule is: where to look, how to be sure, what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import Graph, Node

__all__ = [
    "UNPROBED",
    "Example",
    "Refusal",
    "Region",
    "Replacement",
    "Rule",
    "Shapes",
    "Sized",
    "argument_text",
    "argument_texts",
    "bound_arguments",
    "calls_of",
    "named",
]

Shapes = Mapping[Node, tuple[int, ...]]
Sized = tuple[nn.Module, tuple[tuple[int, ...], ...]]  # a module and the sizes of its inputs
Example = Callable[[], Sized]

UNPROBED = "it does not run on probes"  # a refusal


class Refusal(Exception):
    """A region that is not replaced.

    report: False if the code never looked like a candidate. executed: False if no run showed what the code does.
    """

    def __init__(self, reason: str, *, report: bool = True, executed: bool = True) -> None:
        super().__init__(reason)
        self.report, self.executed = report, executed


def bound_arguments(node: Node, function: Callable[..., Any]) -> dict[str, Any]:
    """The arguments of a call by the names that `function` has for them, defaults included.

    Raises: Refusal if they do not fit.
    """
    try:
        bound = inspect.signature(function).bind(*node.args, **node.kwargs)
    except TypeError as error:
        raise Refusal(f"its arguments are not replaced: {error}") from error
    bound.apply_defaults()
    return bound.arguments


def argument_text(
    name: str, value: Any, names: Mapping[Node, str], numbers: tuple[type, ...] = (bool, int, float)
) -> str:
    """An argument of a call as Python text.

    Args: names: of the inputs, see `Region.names`. numbers: types of other arguments.
    Raises: Refusal if the argument, or a part of a tuple or list, is something else.
    """
    if isinstance(value, Node) and value in names:
        return names[value]
    if isinstance(value, (tuple, list)):
        parts = [argument_text(name, part, names, numbers) for part in value]
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if value is None or type(value) in numbers:
        return repr(value)
    raise Refusal(f"it has an argument of type {type(value).__name__}: {name}")


def argument_texts(node: Node, function: Callable[..., Any], names: Mapping[Node, str]) -> dict[str, str]:
    """The arguments of a call as Python text, see `bound_arguments` and `argument_text`."""
    return {k: argument_text(k, v, names) for k, v in bound_arguments(node, function).items()}


def named(*functions: Any) -> dict[str, Any]:
    """The functions and classes by their names, which the texts of a replacement mention."""
    return {f.__name__: f for f in functions}


@dataclass(frozen=True, kw_only=True)
class Region:
    """Nodes that compute the outputs from the inputs.

    inputs: the tensors that the region reads, x0, x1, ... of the replacement.
    nodes: all of the region, outputs included, in graph order.
    anchor: the replacement is called in front of this node.
    main: the node that the rule is about; the report shows its line.
    problem: why the region may not be replaced even if the proof succeeds, or "".
    modules: calls of modules, those among `nodes` first; the replacement gets the modules after the inputs.
    cat: the node that joins the inputs along dimension 1, if a rule for channels replaces it too.
    passed: calls of modules of torch that run between `nodes`; the forward's own code runs once one of them has a hook.
    """

    inputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]
    anchor: Node
    main: Node
    problem: str = ""
    modules: tuple[Node, ...] = ()
    cat: Node | None = None
    passed: tuple[Node, ...] = ()

    @classmethod
    def of_call(cls, node: Node, modules: tuple[Node, ...] = ()) -> Region:
        """The region of one call."""
        inputs = tuple(node.all_input_nodes)
        return cls(inputs=inputs, nodes=(node,), outputs=(node,), anchor=node, main=node, modules=modules)

    @property
    def names(self) -> dict[Node, str]:
        """The inputs by their names in a replacement."""
        return {node: f"x{i}" for i, node in enumerate(self.inputs)}

    @property
    def source(self) -> Node:
        return self.inputs[0] if self.cat is None else self.cat

    @property
    def body(self) -> tuple[Node, ...]:
        """The nodes without cat."""
        return tuple(n for n in self.nodes if n is not self.cat)


def calls_of(targets: Collection[Any], graph: Graph, op: str = "call_function") -> Iterator[Region]:
    """A region for each call of these functions, or of methods by their names."""
    for node in graph.nodes:
        if node.op == op and node.target in targets:
            yield Region.of_call(node)


@dataclass(frozen=True)
class Replacement:
    """A call in place of a region, as Python text over its inputs x0, x1, ... and its modules m0, m1, ...

    condition: true if the proof holds; elsewhere the region's own code runs. It is evaluated if x0 is a tensor and no
        input is of a class of a user, see `guards.ordinary`.
    result: one value for a region with one output, a sequence for more.
    names: the objects that the two texts mention.
    contiguous: true if the outputs are, for code whose outputs are always contiguous; "" elsewhere.
    otherwise: with `contiguous`, what runs where the outputs would have to be and are not.
    ordered: what runs instead if later code depends on the order of the outputs in memory, which is one order for the
        region's own code and another one for `result`; None if both have the same, or `contiguous` tells.
    first: a cheap condition on x0, false only where `condition` is. In a forward with no other region it is looked at
        before everything that the capture relied on, beside the forward's arguments: its names begin with "opswap_".
    label: "rule | module path", for the comment above the generated code; the planner sets it.
    """

    condition: str
    result: str
    names: Mapping[str, Any]
    contiguous: str = ""
    otherwise: Replacement | None = None
    ordered: Replacement | None = None
    first: str = ""
    label: str = ""


def _find_nothing(graph: Graph) -> Iterable[Region]:
    return ()


def _take_all(module: nn.Module) -> str | None:
    return ""


@dataclass(frozen=True)
class Rule:
    """One kind of rewrite.

    find: yields candidate regions of a captured graph, which may overlap.
    prove: returns the replacement of one, or raises `Refusal`; it also gets the sizes of the graph's
        tensors if a run has shown them.
    exact: the replacement's outputs and gradients are bit-equal to the region's.
    example: makes a module that the rule changes and the sizes of its inputs, for `opswap.tune` to time.
    modules: classes of torch whose own forward is looked at too, on instances of exactly these classes.
    calls: classes of torch whose calls `find` looks for; a Sequential that holds one is looked at too.
    behind: classes of torch whose calls `find` looks for right behind an activation, also of another block.
    opens: classes of torch whose calls, if a torch.nn.ModuleList holds several, are looked at as part of the
        forward that makes them.
    branches: blocks that read one tensor and begin with the same activation are looked at as part of the forward that
        calls them.
    links: true for the graph of a forward that is one part of what `find` joins: such blocks are looked at as part of
        the forward that calls several of them one after another.
    starts, ends: true for a module that such a part begins with, and for the graph of a block that is the rest of it.
    single: `find` needs one such part; elsewhere two, one after the other.
    whole: in place of the whole forward of instances of exactly `modules`, which has no graph; x0 is its
        input and m0 the module.
    declines: of these instances, "" for those that `whole` is for, None for those that the rule is not about, else why
        an instance is kept.
    inference: modules of the region are merged only if no gradient is needed; elsewhere they are called, and may
        have a `whole` of another rule.
    devices: types of devices, such as ("cpu",), on which the replacement is faster; () is every device.
    """

    name: str
    exact: bool
    find: Callable[[Graph], Iterable[Region]] = _find_nothing
    prove: Callable[[Region, Shapes], Replacement] | None = None
    modules: tuple[type[nn.Module], ...] = ()
    example: Example | None = None
    calls: tuple[type[nn.Module], ...] = ()
    behind: tuple[type[nn.Module], ...] = ()
    opens: tuple[type[nn.Module], ...] = ()
    branches: bool = False
    links: Callable[[Graph], bool] | None = None
    starts: Callable[[nn.Module], bool] | None = None
    ends: Callable[[Graph], bool] | None = None
    single: bool = False
    whole: Replacement | None = None
    declines: Callable[[nn.Module], str | None] = _take_all
    inference: bool = False
    devices: tuple[str, ...] = ()
