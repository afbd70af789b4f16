# SPDX-License-Identifier: MIT
"""The same rules on the graphs that torch.compile captures, whatever Python the model is written in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .api import select_rules
from .plan import Change, apply_rules
from .report import Report, Site
from .rewrite import replace_region
from .rules import Rule

__all__ = ["Backend", "backend", "dynamo_backend"]

_FRAME = re.compile(r'File "(.+?)", line (\d+)')


class Backend:
    """A backend for torch.compile: replaces operators in a graph, then hands it to the inner backend.

    reports: one for every graph so far, in the order in which torch.compile made them.
    """

    def __init__(self, inner: str | Callable[..., Any], rules: Sequence[Rule]) -> None:
        self.inner, self.rules = inner, tuple(rules)
        self.reports: list[Report] = []
        self.__name__ = "opswap"

    def __call__(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any
    ) -> Callable[..., Any]:
        self.reports.append(rewrite_graph(module, self.rules))
        if self.inner == "eager":
            return module.forward
        inner = self.inner if callable(self.inner) else torch._dynamo.lookup_backend(self.inner)
        return inner(module, example_inputs, **options)


def dynamo_backend(
    inner: str | Callable[..., Any] = "eager",
    *,
    exact: bool = False,
    rules: Sequence[Rule] | None = None,
) -> Backend:
    """A backend for torch.compile that applies the rules of `swap` to what Dynamo captures, for training too.

    Args:
        inner: "eager" runs the graph as it is, "inductor" compiles the rest of it; or another backend.
        exact, rules: as for `swap`.
    Returns: a backend whose `reports` say what was replaced in each graph.
    Raises: TypeError for an inner backend that is neither a name nor callable.
    """
    if not isinstance(inner, str) and not callable(inner):
        raise TypeError(f"inner must be a backend's name or a callable, got {type(inner).__name__}")
    return Backend(inner, select_rules(rules, exact))


def backend(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend that torch.compile(model, backend="opswap") finds: the default rules, then eager."""
    return dynamo_backend()(module, example_inputs, **options)


def rewrite_graph(module: fx.GraphModule, rules: Sequence[Rule]) -> Report:
    """Replace what the rules prove at the sizes of this graph, which Dynamo guards.

    Args: module: its nodes have "example_value" in their meta.
    """
    shapes = {}
    for node in module.graph.nodes:
        node.meta.setdefault("owner", _owner(node))
        node.meta.setdefault("source", _source(node))
        value = node.meta.get("example_value")
        if isinstance(value, Tensor) and all(isinstance(n, int) for n in value.shape):
            shapes[node] = tuple(value.shape)
    changes, refused = apply_rules(rules, module.graph, shapes)
    swapped: list[Site] = []
    replaced: dict[fx.Node, fx.Node] = {}
    for change in changes:
        if _holds(change):
            replace_region(module.graph, change.region, _function(change), replaced)
            swapped.append(change.site)
    module.recompile()
    return Report(swapped, refused)


def _holds(change: Change) -> bool:
    """The replacement's condition, asked of the tensors without data with which Dynamo traced."""
    values = [n.meta.get("example_value") for n in change.region.inputs]
    if not all(isinstance(v, Tensor) for v in values):
        return False
    names = {f"x{i}": v for i, v in enumerate(values)}
    return bool(eval(change.replacement.condition, dict(change.replacement.names), names))


def _function(change: Change) -> Callable[..., Any]:
    inputs = ", ".join(f"x{i}" for i in range(len(change.region.inputs)))
    scope = {**change.replacement.names, "__name__": __name__}
    name = f"opswap_{change.site.rule}"
    exec(f"def {name}({inputs}):\n    return {change.replacement.result}\n", scope)
    return scope[name]


def _owner(node: fx.Node) -> str:
    """The path of the module whose forward made the node, as far as Dynamo tells."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    names = re.findall(r"\['([^']+)'\]|\.([A-Za-z_]\w*)|\[(\d+)\]", path.partition("]")[2] or path)
    return ".".join(next(filter(None, n)) for n in names if any(n) and n[1] != "_modules")


def _source(node: fx.Node) -> str:
    """The innermost line of the stack that is not torch's own."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or node.stack_trace or "")
    mine = [f for f in frames if f"{torch.__path__[0]}/" not in f[0]] or frames
    return ":".join(mine[-1]) if mine else ""
