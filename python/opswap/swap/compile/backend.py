# SPDX-License-Identifier: MIT
"""The same rules on the graphs that torch.compile captures, for any Python code of the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from opswap._torch import lookup_backend

from ..api import select_rules
from ..graph.metadata import drop_unused_metadata
from ..planning.changes import Change, apply_rules
from ..report import Report, Site
from ..rewriting.code import replace_region
from ..rule import Region
from ..rules import Rule
from ..runtime.guards import ordinary
from .open_sizes import AtOtherSizes, at_other_sizes

__all__ = ["Backend", "backend", "dynamo_backend"]

_REPORTS = 64  # a process that compiles for many sizes would keep them all
_FRAME = re.compile(r'File "(.+?)", line (\d+)')


class Backend:
    """A backend for torch.compile: replaces operators in a graph, then passes it to the inner backend.

    reports: one for each of the latest 64 graphs, in the order in which torch.compile made them.
    """

    def __init__(self, inner: str | Callable[..., Any], rules: Sequence[Rule]) -> None:
        self.inner, self.rules = inner, tuple(rules)
        self.reports: list[Report] = []
        self.__name__ = "opswap"

    def __call__(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any
    ) -> Callable[..., Any]:
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for node, value in zip(placeholders, example_inputs, strict=True):
            if isinstance(value, Tensor) and value.dtype is torch.int64 and value.dim() == 1:
                node.meta["value"] = value
        found = [rewrite_graph(graph, self.rules) for graph in (module, *_checkpointed(module))]
        self.reports.append(Report([s for r in found for s in r.swapped], [s for r in found for s in r.kept]))
        del self.reports[:-_REPORTS]
        if self.inner == "eager":
            return module.forward
        inner = self.inner if callable(self.inner) else lookup_backend(self.inner)
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
    Returns: a backend whose `reports` contain what was replaced in each graph.
    Raises: TypeError for an inner backend that is neither a name nor callable.
    """
    if not isinstance(inner, str) and not callable(inner):
        raise TypeError(f"inner must be a backend's name or a callable, got {type(inner).__name__}")
    return Backend(inner, select_rules(rules, exact))


def backend(module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """The backend that torch.compile(model, backend="opswap") finds: the default rules, then eager."""
    return dynamo_backend()(module, example_inputs, **options)


def rewrite_graph(module: fx.GraphModule, rules: Sequence[Rule]) -> Report:
    """Replace what the rules prove at every size of this graph, which Dynamo guards.

    Args: module: its nodes have "example_value" in their meta.
    """
    drop_unused_metadata(module.graph)
    for node in module.graph.nodes:
        node.meta.setdefault("owner", _owner(node))
        node.meta.setdefault("source", _source(node))
        if node.op == "call_module":
            node.meta["module"] = module.get_submodule(node.target)
    copies = at_other_sizes(module.graph)
    if not copies:
        return Report(kept=[Site("", "", "", False, "sizes of its tensors are known only when it runs")])
    found = [_find(copy, rules) for copy in copies]
    changes, refused = found[0]
    swapped: list[Site] = []
    replaced: dict[fx.Node, fx.Node] = {}
    for key, change in changes.items():
        if all(key in others for others, _ in found):
            region = _original(change.region, copies[0])
            replace_region(module.graph, region, _function(change), replaced)
            swapped.append(change.site)
        else:
            refused.append(replace(change.site, reason="it does not hold at other sizes", gain=None))
    module.recompile()
    return Report(swapped, refused)


def _checkpointed(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """The graphs that this one passes to torch.utils.checkpoint, and theirs."""
    for node in module.graph.nodes:
        if node.target is torch.ops.higher_order.tag_activation_checkpoint:
            body = module.get_submodule(node.args[0].target)
            yield body
            yield from _checkpointed(body)


_Key = tuple[str, str, tuple[fx.Node, ...]]


def _find(copy: AtOtherSizes, rules: Sequence[Rule]) -> tuple[dict[_Key, Change], list[Site]]:
    """What the rules replace in a copy, by what is written for which nodes of the graph itself."""
    shapes = {n: tuple(t.shape) for n, t in copy.values.items()}
    changes, refused = apply_rules(rules, copy.graph, shapes, lambda region: _devices(region, copy.values))
    found: dict[_Key, Change] = {}
    for change in changes:
        if _holds(change, copy.values):
            nodes = (*change.region.inputs, *change.region.nodes)
            key = change.site.rule, change.replacement.result, tuple(copy.original[n] for n in nodes)
            found[key] = change
    return found, refused


def _devices(region: Region, values: Mapping[fx.Node, Tensor]) -> set[str]:
    return {values[n].device.type for n in region.inputs if n in values}


def _holds(change: Change, values: Mapping[fx.Node, Tensor]) -> bool:
    """The replacement's condition, evaluated on tensors without data, whose sizes and strides Dynamo guards."""
    region = change.region
    inputs = [values.get(n, n) for n in region.inputs]
    if any(isinstance(v, fx.Node) for v in inputs) or not ordinary(*inputs):
        return False
    names: dict[str, Any] = {f"x{i}": value for i, value in enumerate(inputs)}
    names |= {f"m{i}": n.meta["module"] for i, n in enumerate(region.modules)}
    return bool(eval(change.replacement.condition, dict(change.replacement.names), names))


def _original(region: Region, copy: AtOtherSizes) -> Region:
    """The region of the graph that the copy was made of."""
    names = "inputs", "nodes", "outputs", "modules"
    many = {k: tuple(copy.original[n] for n in getattr(region, k)) for k in names}
    cat = None if region.cat is None else copy.original[region.cat]
    return replace(
        region, **many, cat=cat, anchor=copy.original[region.anchor], main=copy.original[region.main]
    )


def _function(change: Change) -> Callable[..., Any]:
    region = change.region
    inputs = [f"x{i}" for i in range(len(region.inputs))] + [f"m{i}" for i in range(len(region.modules))]
    scope = {**change.replacement.names, "__name__": __name__}
    name = f"opswap_{change.site.rule}"
    exec(f"def {name}({', '.join(inputs)}):\n    return {change.replacement.result}\n", scope)
    return scope[name]


def _owner(node: fx.Node) -> str:
    """The path of the module whose forward made the node, as far as Dynamo records it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    found = re.findall(r"\['([^']+)'\]|\.([A-Za-z_]\w*)|\[(\d+)\]", path.partition("]")[2] or path)
    names = (next(filter(None, n)) for n in found if any(n))
    return ".".join(name for name in names if name not in ("__dict__", "_modules"))


def _source(node: fx.Node) -> str:
    """The innermost line of the stack that is not torch's own."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or node.stack_trace or "")
    mine = [f for f in frames if f"{torch.__path__[0]}/" not in f[0]] or frames
    return ":".join(mine[-1]) if mine else ""
