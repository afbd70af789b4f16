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

from .capture.quiet import quiet_copy
from .carry_out import carry_out, clear
from .planning.gains import losing_formats, loss, not_slower
from .planning.planned import planned_report
from .planning.planner import make_plan
from .report import Report
from .rewriting.input_format import (
    check_memory_format,
    install_input_format,
    memory_format_of,
    remove_input_formats,
)
from .rule import Refusal, Region, Shapes
from .rules import DEFAULT, MENDS, Replacement, Rule
from .runtime.instance_forward import is_rewritten
from .runtime.plan_of import plan_of
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
    inplace: bool = True,
) -> nn.Module:
    """Replace slow operators inside the modules of `model`, in place or in a copy.

    Parameters, buffers, hooks, flags and state_dict keys stay as they are. The model is analysed on copies of its
    modules: hooks do not run and random generators are not advanced. Forwards that cannot be analysed are left
    alone; see `report`. Rules without a kernel for the devices of the model are not applied.

    A second swap replaces the first: afterwards the model is as if only the second had been called. With equal
    arguments it changes nothing. If swap raises, the model is as it was before the call.

    Args:
        model: any module.
        exact: use only rules whose outputs and gradients are bit-equal to the operators replaced.
        rules: the rules to use, in order of precedence. None: the default rules, without those that were measured
            to be slower on this machine. (): no rule.
        example_inputs: a tuple of positional inputs, with which a copy of the model is run once; lets code
            with constant sizes be proven. The generators of Python and NumPy, and those of torch if the model draws,
            are put back after that run: other threads that draw from them meanwhile draw the same numbers again.
        memory_format: torch.channels_last, for example, converts the 4-D parameters and buffers, and on every call
            of the model its 4-D arguments; `unswap` reverts both. channels_last_3d does the same for 5-D. None
            leaves the memory format as it is, also that of an earlier swap. A fused optimizer that has taken a step
            needs `optimize(model, optimizer, memory_format=...)`, which converts its state too.
        verify_with: a tuple of positional inputs, for `verify` before the model is changed.
        strict: raise if no operator can be replaced.
        inplace: False swaps a copy, as copy.deepcopy makes it: with parameters of its own, the same hooks, and shared
            modules still shared. The model itself is not touched. Errors of copy.deepcopy are passed on.
    Returns: model itself, or the copy.
    Raises: TypeError if model is not a module or memory_format not a memory format; ValueError if the model does not
        run on example_inputs; RuntimeError if strict and no operator can be replaced; VerificationError if the
        check with verify_with fails.
    """
    if memory_format is not None:
        check_memory_format(memory_format)
    model = _module(model) if inplace else copy.deepcopy(_module(model))
    plan = make_plan(model, select_rules(rules, exact), example_inputs)
    if strict and not plan.report.swapped:
        raise RuntimeError(f"swap: nothing to replace was found in {type(model).__name__}\n{plan.report}")
    if verify_with is not None:
        options = {"exact": exact, "rules": rules, "example_inputs": example_inputs}
        verify(quiet_copy(model, stock=True), verify_with, **options)
    carry_out(plan, lambda: None if memory_format is None else install_input_format(model, memory_format))
    return model


def scan(
    model: nn.Module,
    *,
    exact: bool = False,
    rules: Sequence[Rule] | None = None,
    example_inputs: tuple[Any, ...] | None = None,
) -> Report:
    """What `swap` would do with the same arguments. Nothing is changed, and no hook runs.

    Of a swapped model: what a second swap would do, not what the first one did; see `report`.

    Raises: TypeError if model is not a module; ValueError if the model does not run on example_inputs.
    """
    found = make_plan(_module(model), select_rules(rules, exact), example_inputs).report
    return replace(found, memory_format=memory_format_of(model), denormals=denormal_parameters(model))


def report(model: nn.Module) -> Report:
    """What `swap` did to a model, and why it left other code alone.

    The report was made by the swap with its own rules and example_inputs; nothing is analysed again. It is copied
    and pickled with the model. What was taken apart since is listed under `kept`: modules that were replaced, and
    modules that were added. A part of a swapped model has the part of the report that is about it.

    Returns: an empty report with a `note` if the model was not swapped.
    Raises: TypeError if model is not a module.
    """
    found = planned_report(_module(model))
    planned = plan_of(model)
    if planned is not None:
        found = replace(found, parts=list(planned.report.parts))
    return replace(found, memory_format=memory_format_of(model), denormals=denormal_parameters(model))


def unswap(model: nn.Module, *, inplace: bool = True) -> nn.Module:
    """Revert every rewrite, and the memory format: the same module objects with their own forwards.

    Args: inplace: False reverts a copy, as copy.deepcopy makes it, and leaves the model swapped.
    Returns: model itself, or the copy.
    Raises: TypeError if model is not a module.
    """
    model = _module(model) if inplace else copy.deepcopy(_module(model))
    for module in model.modules():
        clear(module)
    remove_input_formats(model)
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
    module, as the swapped one holds it. A tensor that is not is compared in up to 40 runs, whose inputs and parameters
    differ by up to 0.1 %: it must be near more often than not, or in the sum of all runs and in the best one. Gradients
    of one value per channel may be sums of terms that cancel: their errors are compared with the terms. The stock model
    runs without the gradients of torch that end the process in channels_last: the backward of strided 1x1 convolutions
    of few channels, and of a GroupNorm behind frozen layers.

    The copies run without your hooks. The random generators, which belong to the process, are seeded and put back as
    they were. Other threads may train meanwhile, swapped models too, but should draw from generators of their own: what
    they draw from those of the process comes from these seeds and is drawn again later, and may make the check of a
    model with dropout fail.

    Args:
        model: a stock model, of which a copy is swapped with the other arguments, or a swapped one.
        inputs: a tuple of positional inputs.
    Returns: the report of the swap, with its `checks`.
    Raises: VerificationError, a RuntimeError with the table, if a check fails; TypeError if model is not a module
        or inputs not a tuple.
    """
    if not isinstance(inputs, tuple):
        raise TypeError(f"inputs must be a tuple, got {type(inputs).__name__}")
    with torch.inference_mode(False):
        swapped = quiet_copy(_module(model), stock=False)
        stock = swap(quiet_copy(model, stock=True), rules=MENDS)
        if not any(map(is_rewritten, swapped.modules())):
            swap(swapped, exact=exact, rules=rules, example_inputs=example_inputs)
        return compare(stock, swapped, inputs, report(swapped))


def _module(model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(model).__name__}")
    return model


def select_rules(rules: Sequence[Rule] | None, exact: bool) -> list[Rule]:
    """The rules given by the caller; of the default ones, those that are not slower on this machine."""
    given = DEFAULT if rules is None else rules
    for rule in given:
        if not isinstance(rule, Rule):
            raise TypeError(f"rules: expected rules as in opswap.swap.rules.DEFAULT, got {rule!r}")
    chosen = [r for r in given if r.exact or not exact]
    return chosen if rules is not None else [_unless_slower(r) for r in chosen]


def _unless_slower(rule: Rule) -> Rule:
    reason, losing = loss(rule.name), losing_formats(rule.name)
    if not losing:
        return rule

    def guarded(found: Replacement) -> Replacement:
        condition = f"{found.condition} and not_slower(x0, {losing})"
        return replace(found, condition=condition, names={**found.names, "not_slower": not_slower})

    def prove(region: Region, shapes: Shapes) -> Replacement:
        found = rule.prove(region, shapes)
        if reason:
            raise Refusal(reason)
        return guarded(found)

    return replace(rule, prove=prove, whole=rule.whole and guarded(rule.whole))
