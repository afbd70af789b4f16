# SPDX-License-Identifier: MIT
"""The report of a swap, as the swap left it on the model, and what was done to the model since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import nn

from ..capture.tracer import class_name
from ..report import Planned, Report, Site
from ..runtime.guards import replaces
from ..runtime.instance_forward import is_rewritten, recipe_of
from ..runtime.plan_of import plan_of
from ..runtime.reasons import GLOBAL_HOOKS, failure
from .bypass import bypassed
from .planner import in_order

__all__ = ["all_paths", "planned_report"]

_NOT_SWAPPED = "this model was not swapped: opswap.scan(model) shows what opswap.swap(model) would do"
_NOTHING_HERE = "nothing was swapped in this part; the report of the whole model shows what was kept in it"
_REPLACED = "its module was replaced after the swap; opswap.swap again analyses it anew"
_REMOVED = "its module was removed after the swap"
_TAKEN = (
    "its module was unswapped or swapped again on its own or in another model, or replaced by one of the same class; "
    "opswap.swap again analyses it anew"
)
_ADDED = "it was added after the swap, or its class was changed; opswap.swap again analyses it anew"
_BYPASSED = "{} after the swap; opswap.swap again analyses it anew"
_STOPPED = "its original forward runs: {}; opswap.swap again analyses it anew"
_PATHS = 16  # of one shared module


def all_paths(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules with their paths, a shared one under each path, at most 16; a module that holds itself ends there."""
    counts: Counter[nn.Module] = Counter()

    def walk(module: nn.Module, path: str, above: tuple[nn.Module, ...]) -> Iterator[tuple[str, nn.Module]]:
        counts[module] += 1
        yield path, module
        for name, child in module._modules.items():
            if child is not None and child not in above and counts[child] < _PATHS:
                yield from walk(child, f"{path}.{name}" if path else name, (*above, child))

    return walk(model, "", (model,))


def planned_report(model: nn.Module) -> Report:
    """What the latest swap of the model, or of a model that it is a part of, planned and what is left of it."""
    paths = dict(model.named_modules())
    found = _planned(model)
    sites, stopped = _sites(model)
    if found is None:
        return Report(sites, stopped, note="" if sites or stopped else _NOT_SWAPPED)
    prefix, planned = found
    parts = {path: own for path, m in paths.items() if path and (own := _own_plan(m)) is not None}
    kept = [s for s in _below(planned.report.kept, prefix, planned.shared) if not _covered(s.path, parts)]
    kept += stopped
    kept += [s for s in _gone(model, prefix, planned, [*sites, *stopped]) if not _covered(s.path, parts)]
    kept += [s for s in _added(paths, prefix, planned) if not _covered(s.path, parts)]
    for path, part in parts.items():
        kept += [s.below(path) for s in part.report.kept]
    order = {path: i for i, path in enumerate(paths)}
    note = "" if sites or kept or prefix == "" else _NOTHING_HERE
    return Report(sites, sorted(kept, key=lambda s: order.get(s.path, len(order))), note=note)


def _gone(model: nn.Module, prefix: str, planned: Planned, left: list[Site]) -> list[Site]:
    """The planned sites that are no longer there, with the reason. `left`: those that are."""
    first = dict(planned.shared)
    paths, known = dict(all_paths(model)), dict(planned.classes)

    def key(site: Site) -> Site:
        whole = site.below(prefix)
        return replace(whole, path=first.get(whole.path, whole.path), reason="", gain=None)

    present = Counter(map(key, left))
    lost = []
    for site in _below(planned.report.swapped, prefix):
        if present[key(site)]:
            present[key(site)] -= 1
        else:
            whole = site.below(prefix).path
            lost.append(replace(site, reason=_lost(site.path, paths, known.get(whole)), gain=None))
    return lost


def _sites(model: nn.Module) -> tuple[list[Site], list[Site]]:
    """The sites of every module that has a new forward, and of those whose original forward always runs."""
    paths = {m: path for path, m in model.named_modules()}
    rewritten = {m: path for m, path in paths.items() if is_rewritten(m) and replaces(m)}
    reasons = {m: _failure(m) for m in rewritten}
    inlined = {block for m in rewritten if not reasons[m] for block, _ in m._opswap_record.inlined}
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
    """Why the new forward does not run, for any arguments; a hook of the process may go again."""
    around = bypassed(module)
    if around:
        return _BYPASSED.format(around)
    guarded = "opswap_holds" in recipe_of(module).code
    found = failure(module) if guarded else None
    return None if found in (None, GLOBAL_HOOKS) else _STOPPED.format(found)


def _planned(model: nn.Module) -> tuple[str, Planned] | None:
    """The plan of the model's swap, and the model's path in the swapped model."""
    own = plan_of(model)
    if own is not None:
        return own.path, own
    found: dict[tuple[str, int], tuple[str, Planned]] = {}
    for path, m in model.named_modules():
        inner = plan_of(m)
        for whole in _paths_of(inner):
            if whole == path or whole.endswith(f".{path}"):
                prefix = whole.removesuffix(path).rstrip(".")
                found.setdefault((prefix, id(inner.report)), (prefix, inner))
    return max(found.values(), key=lambda f: _likeness(model, *f), default=None)


def _paths_of(planned: Planned | None) -> list[str]:
    """The paths of a module in the model that was swapped."""
    if planned is None:
        return []
    return [planned.path, *(path for path, first in planned.shared if first == planned.path)]


def _likeness(model: nn.Module, prefix: str, planned: Planned) -> int:
    """How many modules of the model the plan has at and below this path."""
    known = dict(planned.classes)
    return sum(
        known.get(".".join(p for p in (prefix, path) if p)) == class_name(m)
        for path, m in model.named_modules()
    )


def _own_plan(module: nn.Module) -> Planned | None:
    """The plan of a part that was swapped on its own, after the whole."""
    found = plan_of(module)
    return found if found is not None and found.path == "" else None


def _covered(path: str, parts: dict[str, Planned | None]) -> bool:
    return any(path == part or path.startswith(f"{part}.") for part in parts)


def _below(sites: list[Site], prefix: str, shared: Iterable[tuple[str, str]] = ()) -> list[Site]:
    """The sites at or below a path, seen from there; those of a shared module also by its other paths."""
    if not prefix:
        return list(sites)
    others: dict[str, list[str]] = {}
    for path, first in shared:
        others.setdefault(first, []).append(path)
    inside = []
    for s in sites:
        places = [p for p in (s.path, *others.get(s.path, ())) if p == prefix or p.startswith(f"{prefix}.")]
        inside += [replace(s, path=p[len(prefix) + 1 :]) for p in places[:1]]
    return inside


def _lost(path: str, paths: dict[str, nn.Module], known: str | None) -> str:
    """Why a site is no longer there. `known`: the class of its module at the swap."""
    module = paths.get(path)
    if module is None:
        return _REMOVED
    return _TAKEN if class_name(module) == known else _REPLACED


def _added(paths: dict[str, nn.Module], prefix: str, planned: Planned) -> Iterator[Site]:
    """Modules that the plan does not know, or knows as something else; of a part that was added only the topmost."""
    known = dict(planned.classes)
    found: list[str] = []
    for path, module in paths.items():
        if any(path.startswith(f"{above}.") for above in found):
            continue
        whole = ".".join(p for p in (prefix, path) if p)
        name = class_name(module)
        if whole in known and isinstance(module, torch.jit.ScriptModule):
            continue
        if known.get(whole, "").replace(".Lazy", ".") != name.replace(".Lazy", "."):
            found.append(path)
            yield Site(path, "", name, False, _ADDED)
