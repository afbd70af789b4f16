# SPDX-License-Identifier: MIT
"""What the rules replace in one graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from torch import fx

from ..graph.layout import order_matters_behind
from ..report import Site
from ..rule import Refusal, Region, Shapes
from ..rules import Replacement, Rule
from ..rules.conditions import on_cpu
from .gains import gain

__all__ = ["Change", "apply_rules", "guarded", "without_kernel"]


@dataclass
class Change:
    """One proven rewrite in a capture; `site` is relative to the captured module."""

    region: Region
    replacement: Replacement
    site: Site


def without_kernel(rule: Rule, devices: Collection[str]) -> str:
    """Why a rule is not applied on any of these devices, or "". Without a device it is left to the condition."""
    apart = rule.devices and devices and not set(rule.devices).intersection(devices)
    return f"no kernel for {', '.join(sorted(devices))}" if apart else ""


def guarded(rule: Rule, replacement: Replacement, path: str = "") -> Replacement:
    """The replacement with the condition that its tensor is on a device of the rule, which may change after a swap."""
    ordered = None if replacement.ordered is None else guarded(rule, replacement.ordered, path)
    replacement = replace(replacement, ordered=ordered, label=f"{rule.name} | {path}")
    if not rule.devices:
        return replacement
    if rule.devices == ("cpu",):
        test, names = "on_cpu(x0)", {"on_cpu": on_cpu}
    else:
        test, names = f"x0.device.type in {rule.devices}", {}
    condition = f"{replacement.condition} and {test}"
    return replace(replacement, condition=condition, names={**replacement.names, **names})


def apply_rules(
    rules: Sequence[Rule], graph: fx.Graph, shapes: Shapes, devices: Callable[[Region], Collection[str]]
) -> tuple[list[Change], list[Site]]:
    """What the rules, in their order, replace in a graph, and what they looked at and refused.

    Args: devices: types of the devices on which a region runs; without any, its condition decides.
    """
    changes: list[Change] = []
    taken: set[fx.Node] = set()
    refused: dict[fx.Node, list[tuple[Refusal, Site]]] = {}
    for rule in rules:
        for region in rule.find(graph):
            if not taken.isdisjoint(region.nodes):
                continue
            meta = region.main.meta
            path = region.anchor.target if region.anchor.op == "call_module" else meta["owner"]
            site = Site(path, rule.name, meta["source"], rule.exact, gain=gain(rule.name))
            try:
                replacement = rule.prove(region, shapes)
                problem = region.problem or without_kernel(rule, devices(region))
                if problem:
                    raise Refusal(problem)
            except Refusal as refusal:
                refused.setdefault(region.main, []).append((refusal, site))
                continue
            if replacement.ordered is not None and order_matters_behind(region.outputs):
                replacement = replacement.ordered
            taken.update(region.nodes)
            changes.append(Change(region, guarded(rule, replacement, path), site))
    refusals = [_refusal(tries) for node, tries in refused.items() if node not in taken]
    return changes, [site for site in refusals if site is not None]


def _refusal(tries: Sequence[tuple[Refusal, Site]]) -> Site | None:
    """The refusal to report: what the code does; else why the largest region could not be run."""
    shown = [(refusal, site) for refusal, site in tries if refusal.executed and refusal.report]
    refusal, site = (shown or tries)[0]
    return None if refusal.executed and not refusal.report else replace(site, reason=str(refusal), gain=None)
