# SPDX-License-Identifier: MIT
"""The report of a swap, as the swap left it on the model, and what was done to the model since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from ..report import Planned, Report, Site
from ..rewriting.code import Rewritten, is_rewritten
from ..runtime.instance_forward import recipe_of
from ..runtime.reasons import GLOBAL_HOOKS, failure
from ..runtime.state import stock_class
from .bypass import bypassed
from .planner import in_order

__all__ = ["planned_report"]

_NOT_SWAPPED = "this model was not swapped: opswap.scan(model) shows what opswap.swap(model) would do"
_NOTHING_HERE = "nothing was swapped in this part; the report of the whole model says what was kept in it"
_REPLACED = "its module was replaced after the swap; opswap.swap again analyses it anew"
_ADDED = "it was added after the swap, or its class was changed; opswap.swap again analyses it anew"
_BYPASSED = "{} after the swap; opswap.swap again analyses it anew"
_STOPPED = "its original forward runs: {}; opswap.swap again analyses it anew"
_DERIVED = "its class {} was derived from a swapped one"


def planned_report(model: nn.Module) -> Report:
    """What the latest swap of the model, or of a model that it is a part of, planned and what is left of it."""
    paths = dict(model.named_modules())
    found = _planned(model)
    sites, stopped = _sites(model)
    if found is None:
        return Report(sites, stopped, note="" if sites or stopped else _NOT_SWAPPED)
    prefix, planned = found
    parts = {path: _own_plan(m) for path, m in paths.items() if path and _own_plan(m) is not None}
    kept = [s for s in _below(planned.report.kept, prefix) if not _covered(s.path, parts)]
    gone = Counter(
        _without_gain(s) for s in _below(planned.report.swapped, prefix) if not _covered(s.path, parts)
    )
    gone -= Counter(map(_without_gain, sites))
    gone -= Counter(_without_gain(replace(s, reason="")) for s in stopped)
    kept += stopped
    kept += [replace(s, reason=_lost(s.path, paths)) for s in gone.elements()]
    kept += [s for s in _added(paths, prefix, planned) if not _covered(s.path, parts)]
    for path, part in parts.items():
        kept += [s.below(path) for s in part.report.kept]
    order = {path: i for i, path in enumerate(paths)}
    note = "" if sites or kept or prefix == "" else _NOTHING_HERE
    return Report(sites, sorted(kept, key=lambda s: order.get(s.path, len(order))), note=note)


def _sites(model: nn.Module) -> tuple[list[Site], list[Site]]:
    """The sites of every module that has a new forward, and of those whose original forward runs for good."""
    paths = {m: path for path, m in model.named_modules()}
    rewritten = {m: path for m, path in paths.items() if is_rewritten(m) and vars(m).get("_opswap_record")}
    reasons = {m: _failure(m) for m in rewritten}
    inlined = {block for m in rewritten if not reasons[m] for block, _ in m._opswap_record.opened}
    sites: list[Site] = []
    stopped: list[Site] = []
    for m, path in rewritten.items():
        found = [s.below(path) for s in m._opswap_record.sites]
        if reasons[m]:
            stopped += [replace(s, reason=reasons[m], gain=None) for s in found]
        elif m not in inlined:
            sites += found
    return in_order(sites, paths), stopped


def _failure(module: nn.Module) -> str | None:
    """Why the new forward does not run, whatever the module is called with; a hook of the process may go again."""
    if bypassed(module):
        return _BYPASSED.format(bypassed(module))
    guarded = "opswap_holds" in recipe_of(module).code
    found = failure(module) if guarded else None
    return None if found in (None, GLOBAL_HOOKS) else _STOPPED.format(found)


def _planned(model: nn.Module) -> tuple[str, Planned] | None:
    """The plan that the model was swapped by, and the model's path in the one that was swapped."""
    own = vars(model).get("_opswap_plan")
    if own is not None:
        return own.path, own
    for path, m in model.named_modules():
        inner = vars(m).get("_opswap_plan")
        if inner is not None and (inner.path == path or inner.path.endswith(f".{path}")):
            return inner.path.removesuffix(path).rstrip("."), inner
    return None


def _own_plan(module: nn.Module) -> Planned | None:
    """The plan of a part that was swapped on its own, after the whole."""
    found = vars(module).get("_opswap_plan")
    return found if found is not None and found.path == "" else None


def _covered(path: str, parts: dict[str, Planned | None]) -> bool:
    return any(path == part or path.startswith(f"{part}.") for part in parts)


def _below(sites: list[Site], prefix: str) -> list[Site]:
    """The sites at or below a path, seen from there."""
    if not prefix:
        return list(sites)
    inside = [s for s in sites if s.path == prefix or s.path.startswith(f"{prefix}.")]
    return [replace(s, path=s.path[len(prefix) + 1 :]) for s in inside]


def _without_gain(site: Site) -> Site:
    return replace(site, gain=None)


def _lost(path: str, paths: dict[str, nn.Module]) -> str:
    """Why a site is no longer there: the class of its module, or of one above, may have been changed."""
    while True:
        module = paths.get(path)
        if isinstance(module, Rewritten) and not is_rewritten(module):
            return _DERIVED.format(type(module).__name__)
        if not path:
            return _REPLACED
        path = path.rpartition(".")[0]


def _added(paths: dict[str, nn.Module], prefix: str, planned: Planned) -> Iterator[Site]:
    """Modules that the plan does not know, or knows as something else; of a part that was added only the topmost."""
    known = dict(planned.classes)
    found: list[str] = []
    for path, module in paths.items():
        if any(path.startswith(f"{above}.") for above in found):
            continue
        whole = ".".join(p for p in (prefix, path) if p)
        cls = stock_class(module)
        name = f"{cls.__module__}.{cls.__qualname__}"
        if isinstance(module, Rewritten) or (whole in known and isinstance(module, torch.jit.ScriptModule)):
            continue
        if known.get(whole, "").replace(".Lazy", ".") != name.replace(".Lazy", "."):
            found.append(path)
            yield Site(path, "", name, False, _ADDED)
