# SPDX-License-Identifier: MIT
"""Change a model according to a plan: all at once, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from torch import nn

from .capture.paths import Capture
from .capture.tracer import class_name
from .planning.changes import guarded
from .planning.planned import all_paths
from .planning.planner import Plan
from .report import Planned
from .rewriting.code import Recipe, install, make_record, restore, write, write_whole
from .runtime.guards import Record
from .runtime.instance_forward import is_rewritten, put_back, recipe_of, saved
from .runtime.plan_of import keep_plan, plan_of
from .runtime.state import observe

__all__ = ["carry_out", "clear"]

_RECORD = "_opswap_record"


@dataclass
class _Work:
    """What a module is to become. `recipe` and `record` are None for its stock forward."""

    module: nn.Module
    recipe: Recipe | None
    record: Record | None
    planned: Planned | None


def carry_out(plan: Plan, then: Callable[[], None] = lambda: None) -> None:
    """Give the modules of the plan their new forwards, and all others their own.

    A module whose forward and record would come out as they are is left alone.

    Args: then: runs last. Whatever raises, here or there, leaves every module as it was.
    """
    work = _prepare(plan)
    before = [(w.module, saved(w.module, _RECORD), plan_of(w.module)) for w in work]
    try:
        for w in work:
            _change(w)
        then()
    except BaseException:
        for module, entries, planned in before:
            put_back(module, entries)
            keep_plan(module, planned)
        raise


def clear(module: nn.Module) -> None:
    """Give a module its stock forward, without any trace of a swap."""
    _change(_Work(module, None, None, None))


def _change(work: _Work) -> None:
    module = work.module
    if work.recipe is not None:
        removed = "forward" not in vars(module)
        current = is_rewritten(module) and recipe_of(module) is work.recipe and not removed
        if not current or vars(module).get(_RECORD) is not work.record:
            install(module, work.recipe, work.record)
    elif is_rewritten(module):
        restore(module)
    keep_plan(module, work.planned)


def _prepare(plan: Plan) -> list[_Work]:
    """Write every forward and every record; touches no module."""
    live = plan.shell.live
    found: dict[nn.Module, tuple[Recipe, Record]] = dict(_rewrites(plan))
    paths = {live(m): path for m, path in plan.paths.items()}
    every = list(all_paths(plan.shell.root))
    classes = tuple((path, class_name(m)) for path, m in every)
    shared = tuple((path, plan.paths[m]) for path, m in every if plan.paths.get(m, path) != path)
    root = live(plan.shell.root)
    work = []
    for module, path in {**dict.fromkeys(plan.shell.originals(), ""), **paths}.items():
        recipe, record = found.get(module, (None, None))
        keeps = module is root or recipe is not None
        planned = Planned(path, plan.report, classes, shared) if keeps else None
        if recipe is not None and _is_current(module, recipe, record):
            recipe, record = recipe_of(module), module._opswap_record
        before = plan_of(module)
        if before == planned:
            planned = before
        if recipe is not None or planned is not None or is_rewritten(module) or before is not None:
            work.append(_Work(module, recipe, record, planned))
    return work


def _rewrites(plan: Plan) -> Iterator[tuple[nn.Module, tuple[Recipe, Record]]]:
    live = plan.shell.live
    changed = {m.root for m in plan.modules} | {w.module for w in plan.module_replacements}
    for m, follows in (*((m, False) for m in plan.modules), *((m, True) for m in plan.followed)):
        paths = [p for p in m.paths if p.changes or follows]
        passed = (n.target for p in paths for c in p.changes for n in c.region.passed)
        record = make_record([_on_live(p.capture, live) for p in paths], m.sites(), passed, follows)
        changes = [(p.capture, [(c.region, c.replacement) for c in p.changes]) for p in paths]
        recipe = write(changes, follows=follows, replays=not changed.isdisjoint(m.root.modules()))
        recipe.make_class()
        yield live(m.root), (recipe, record)
    recipes: dict[tuple[type[nn.Module], str], Recipe] = {}
    for w in plan.module_replacements:
        cls = type(w.module)
        key = (cls, w.rule.name)
        if key not in recipes:
            recipes[key] = write_whole(cls, guarded(w.rule, w.rule.whole))
            recipes[key].make_class()
        yield live(w.module), (recipes[key], Record(observe(live(w.module)), (), (), w.sites))


def _on_live(capture: Capture, live: Callable[[Any], Any]) -> Capture:
    """The capture of a twin as one of the module itself: what the record is to watch are the model's own objects."""
    watched = [f.name for f in fields(capture) if f.name not in ("graph", "guards", "size_guards")]
    return replace(capture, **{name: _mapped(getattr(capture, name), live) for name in watched})


def _mapped(value: Any, live: Callable[[Any], Any]) -> Any:
    """The value with the model's own objects in place of copies, also inside of tuples and of opswap's dataclasses."""
    if type(value) is tuple:
        return tuple(_mapped(v, live) for v in value)
    if is_dataclass(value) and type(value).__module__.startswith("opswap."):
        return replace(value, **{f.name: _mapped(getattr(value, f.name), live) for f in fields(value)})
    return live(value)


def _is_current(module: nn.Module, recipe: Recipe, record: Record) -> bool:
    """True if the module already computes what the recipe computes, under the same conditions."""
    if not is_rewritten(module):
        return False
    installed = recipe_of(module)
    try:
        same = all(
            getattr(installed, name) == getattr(recipe, name)
            for name in ("original", "code", "modules", "names")
        )
        known = vars(module).get(_RECORD)
        return same and bool(known == record) and not known.moved
    except Exception:  # values that do not compare, such as arrays
        return False
