# SPDX-License-Identifier: MIT
"""swap, scan, report, unswap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from opswap.memory import denormal_parameters

from .door import check_memory_format, close_doors, memory_format_of, open_door
from .plan import Plan, in_order, make_plan
from .report import Report, Site
from .rewrite import Recipe, Rewritten, install, is_rewritten, make_record, restore, write, write_whole
from .rules import DEFAULT, Rule
from .runtime import Record, holds, observe

__all__ = ["report", "scan", "swap", "unswap"]


def swap(
    model: nn.Module,
    *,
    exact: bool = False,
    rules: Sequence[Rule] | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    memory_format: torch.memory_format | None = None,
    strict: bool = False,
) -> nn.Module:
    """Replace slow operators inside the modules of `model`, in place.

    Args:
        model: any module; its parameters, buffers, hooks, flags and state_dict keys stay as they are, and so
            does its class for everybody else. What cannot be analysed is left alone; see `report`.
        exact: use only rules whose outputs and gradients are bit-equal to the operators replaced.
        rules: the rules to use, in order of precedence; None is all of them.
        example_inputs: a tuple of positional inputs, with which a copy of the model is run once; lets code
            with constant sizes be proven.
        memory_format: torch.channels_last, for one, converts the 4-D parameters and buffers, and on every call
            of the model its 4-D arguments; `unswap` takes both back. channels_last_3d does so for 5-D.
        strict: raise where nothing was found.
    Returns: model itself.
    Raises: TypeError for what is no module or no memory format; ValueError where example_inputs do not run;
        RuntimeError where strict and nothing was found.
    """
    if memory_format is not None:
        check_memory_format(memory_format)
    plan = make_plan(_module(model), _select(rules, exact), example_inputs)
    if strict and not plan.report.swapped:
        raise RuntimeError(f"swap: nothing to replace was found in {type(model).__name__}\n{plan.report}")
    _carry_out(plan)
    if memory_format is not None:
        open_door(model, memory_format)
    return model


def scan(
    model: nn.Module,
    *,
    exact: bool = False,
    rules: Sequence[Rule] | None = None,
    example_inputs: tuple[Any, ...] | None = None,
) -> Report:
    """What `swap` would do with the same arguments; changes nothing."""
    found = make_plan(_module(model), _select(rules, exact), example_inputs).report
    return replace(found, memory_format=memory_format_of(model), denormals=denormal_parameters(model))


def report(model: nn.Module) -> Report:
    """What `swap` did to a model, and what it would leave alone in it."""
    paths = {m: path for path, m in _module(model).named_modules()}
    rewritten = {m: path for m, path in paths.items() if "_opswap_record" in vars(m)}
    inlined = {block for m in rewritten for block, _ in m._opswap_record.opened}
    swapped = [
        s.below(path) for m, path in rewritten.items() if m not in inlined for s in m._opswap_record.sites
    ]
    places = {(s.path, s.source) for s in swapped}
    found = scan(model)
    kept = [s for s in found.kept if (s.path, s.source) not in places]
    return replace(found, swapped=in_order(swapped, paths), kept=kept)


def unswap(model: nn.Module) -> nn.Module:
    """Take every rewrite back, and the memory format: the same module objects with their own classes.

    Raises: TypeError for what is no module; RuntimeError where somebody derived a class from a rewritten one.
    """
    for path, module in _module(model).named_modules():
        if isinstance(module, Rewritten) and not is_rewritten(module):
            raise RuntimeError(
                f"unswap: the class of {path!r} was changed to {type(module).__name__} after the swap"
            )
    for module in model.modules():
        if is_rewritten(module):
            restore(module)
    close_doors(model)
    return model


def _carry_out(plan: Plan) -> None:
    """Write everything before the first class is changed, so that an error leaves the model as it was."""
    work = [m for m in plan.modules if not _is_current(m.capture.root, tuple(c.site for c in m.changes))]
    wholes = [w for w in plan.wholes if not _is_current(w.module, w.sites)]
    for module in [*(m.capture.root for m in work), *(w.module for w in wholes)]:
        if is_rewritten(module):
            restore(module)
    pending: list[tuple[nn.Module, Recipe, Record]] = []
    for m in work:
        record = make_record(m.capture, [c.site for c in m.changes])
        recipe = write(m.capture, [(c.region, c.replacement) for c in m.changes])
        recipe.make_class()
        pending.append((m.capture.root, recipe, record))
    recipes: dict[type[nn.Module], Recipe] = {}
    for w in wholes:
        cls = type(w.module)
        if cls not in recipes:
            recipes[cls] = write_whole(cls, w.rule.whole)
        pending.append((w.module, recipes[cls], Record(observe(w.module), (), (), w.sites)))
    for module, recipe, record in pending:
        install(module, recipe, record)


def _is_current(module: nn.Module, sites: tuple[Site, ...]) -> bool:
    return is_rewritten(module) and holds(module) and module._opswap_record.sites == sites


def _module(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    return model


def _select(rules: Sequence[Rule] | None, exact: bool) -> list[Rule]:
    return [r for r in (DEFAULT if rules is None else rules) if r.exact or not exact]
