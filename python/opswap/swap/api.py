# SPDX-License-Identifier: MIT
"""swap, scan, report, unswap, verify."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from opswap.memory import denormal_parameters

from .costs import losing_formats, loss
from .door import check_memory_format, close_doors, memory_format_of, open_door
from .match import Region
from .plan import Plan, in_order, make_plan
from .prove import Refusal
from .report import Report, Site
from .rewrite import Recipe, Rewritten, install, is_rewritten, make_record, restore, write, write_whole
from .rules import DEFAULT, Replacement, Rule
from .rules.rule import Shapes
from .runtime import Record, holds, wins
from .state import observe
from .verify import compare

__all__ = ["report", "scan", "select_rules", "swap", "unswap", "verify"]


def swap(
    model: nn.Module,
    *,
    exact: bool = False,
    rules: Sequence[Rule] | None = None,
    example_inputs: tuple[Any, ...] | None = None,
    memory_format: torch.memory_format | None = None,
    verify_with: tuple[Any, ...] | None = None,
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
        verify_with: a tuple of positional inputs, for `verify`; the model stays as it is where that fails.
        strict: raise where nothing was found.
    Returns: model itself.
    Raises: TypeError for what is no module or no memory format; ValueError where example_inputs do not run;
        RuntimeError where strict and nothing was found; VerificationError where verify_with shows a difference.
    """
    if memory_format is not None:
        check_memory_format(memory_format)
    plan = make_plan(_module(model), select_rules(rules, exact), example_inputs)
    if strict and not plan.report.swapped:
        raise RuntimeError(f"swap: nothing to replace was found in {type(model).__name__}\n{plan.report}")
    if verify_with is not None:
        options = {"exact": exact, "rules": rules, "example_inputs": example_inputs}
        verify(unswap(copy.deepcopy(model)), verify_with, **options)
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
    found = make_plan(_module(model), select_rules(rules, exact), example_inputs).report
    return replace(found, memory_format=memory_format_of(model), denormals=denormal_parameters(model))


def report(model: nn.Module) -> Report:
    """What `swap` did to a model, and what it would leave alone in it."""
    paths = {m: path for path, m in _module(model).named_modules()}
    rewritten = {m: path for m, path in paths.items() if vars(m).get("_opswap_record")}
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


def verify(
    model: nn.Module,
    inputs: tuple[Any, ...],
    *,
    exact: bool = False,
    rules: Sequence[Rule] | None = None,
    example_inputs: tuple[Any, ...] | None = None,
) -> Report:
    """Show on copies that the swapped model computes what the model computes.

    Runs a step, forward and backward, in train() and in eval(), and the forward in eval() without a graph, each
    contiguous and in channels_last, and compares the outputs, the gradients of inputs and parameters, and the
    buffers afterwards. Tensors that are not bit-equal must be as near to the same step in float64 as the stock
    model's, up to a factor of 4; in channels_last, the stock model is also run with that format held from module to
    module, as the swapped one holds it.

    Args:
        model: a model as it was, of which a copy is swapped with the other arguments, or a swapped one.
        inputs: a tuple of positional inputs.
    Returns: the report of the swap, with its `checks`.
    Raises: VerificationError, a RuntimeError with the table, where a check fails; TypeError for what is no module
        or no tuple.
    """
    if not isinstance(inputs, tuple):
        raise TypeError(f"inputs must be a tuple, got {type(inputs).__name__}")
    swapped = copy.deepcopy(_module(model))
    stock = unswap(copy.deepcopy(model))
    if not any(map(is_rewritten, swapped.modules())):
        swap(swapped, exact=exact, rules=rules, example_inputs=example_inputs)
    return compare(stock, swapped, inputs, report(swapped))


def _carry_out(plan: Plan) -> None:
    """Write everything before the first class is changed, so that an error leaves the model as it was."""
    work = [m for m in plan.modules if not _is_current(m.root, tuple(m.sites()))]
    wholes = [w for w in plan.wholes if not _is_current(w.module, w.sites)]
    for module in [*(m.root for m in work), *(w.module for w in wholes)]:
        if is_rewritten(module):
            restore(module)
    pending: list[tuple[nn.Module, Recipe, Record]] = []
    for m in work:
        paths = [p for p in m.paths if p.changes]
        record = make_record([p.capture for p in paths], m.sites())
        recipe = write([(p.capture, [(c.region, c.replacement) for c in p.changes]) for p in paths])
        recipe.make_class()
        pending.append((m.root, recipe, record))
    recipes: dict[tuple[type[nn.Module], str], Recipe] = {}
    for w in wholes:
        cls = type(w.module)
        key = (cls, w.rule.name)
        if key not in recipes:
            recipes[key] = write_whole(cls, w.rule.whole)
        pending.append((w.module, recipes[key], Record(observe(w.module), (), (), w.sites)))
    for module, recipe, record in pending:
        install(module, recipe, record)


def _is_current(module: nn.Module, sites: tuple[Site, ...]) -> bool:
    return is_rewritten(module) and holds(module) and module._opswap_record.sites == sites


def _module(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    return model


def select_rules(rules: Sequence[Rule] | None, exact: bool) -> list[Rule]:
    """The rules asked for; the default ones only where they do not lose on this machine."""
    chosen = [r for r in (DEFAULT if rules is None else rules) if r.exact or not exact]
    return chosen if rules is not None else [_unless_slower(r) for r in chosen]


def _unless_slower(rule: Rule) -> Rule:
    reason, losing = loss(rule.name), losing_formats(rule.name)
    if not losing:
        return rule

    def guarded(found: Replacement) -> Replacement:
        condition = f"{found.condition} and wins(x0, {losing})"
        return replace(found, condition=condition, names={**found.names, "wins": wins})

    def prove(region: Region, shapes: Shapes) -> Replacement:
        found = rule.prove(region, shapes)
        if reason:
            raise Refusal(reason)
        return guarded(found)

    return replace(rule, prove=prove, whole=rule.whole and guarded(rule.whole))
