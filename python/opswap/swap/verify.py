# SPDX-License-Identifier: MIT
"""Run a model as it was and swapped, on copies, and compare everything that a training step produces."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from opswap._torch import tree_leaves, tree_map
from opswap.ops._layout import CHANNELS_LAST

from .capture.dry_run import DryRuns
from .capture.quiet import generators_kept, hooks_left_out, quiet_copy, seed_generators
from .in_double import InDouble
from .nearness import Difference, Score, Terms, difference, same, spread
from .ordered_draws import OrderedDraws
from .own_draws import OwnDraws
from .report import Check, Report

__all__ = ["VerificationError", "compare"]

_MOVED = 2.0**-10  # far more than rounding errors of deep networks, which would be alike in each round
_MODES = ("train", "eval", "inference")
_FORMATS = {
    "contiguous": {4: torch.contiguous_format, 5: torch.contiguous_format},
    "channels_last": CHANNELS_LAST,
}


class VerificationError(RuntimeError):
    """A swapped model does not compute what the model computes; the message has the table, `report` the checks."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message, report)
        self.report = report

    def __str__(self) -> str:
        return self.args[0]


def compare(stock: nn.Module, swapped: nn.Module, inputs: tuple[Any, ...], report: Report) -> Report:
    """The report with one check for every mode and memory format; see `opswap.verify`.

    Args: stock, swapped: copies, which are used up; inputs: a tuple of positional inputs.
    Raises: VerificationError if a check fails.
    """
    checks = []
    for layout in _FORMATS:
        if layout != "contiguous" and not any(isinstance(t, Tensor) and t.dim() in (4, 5) for t in inputs):
            continue
        for mode in _MODES:
            checks.append(_check(stock, swapped, inputs, layout, mode, f"{mode}, {layout}"))
    result = replace(report, checks=checks)
    if not all(c.holds for c in checks):
        raise VerificationError(f"verify: the swapped model differs\n{result}", result)
    return result


def _check(
    stock: nn.Module, swapped: nn.Module, inputs: tuple[Any, ...], layout: str, mode: str, name: str
) -> Check:
    score, note = None, ""
    for n in count():
        moved = tree_map(lambda t: _moved(t, n), inputs)  # noqa: B023 (called at once)
        models = _moved_model(stock, n), _moved_model(swapped, n)
        found = _compare_once(*models, moved, layout, mode, name)
        if isinstance(found, Check):
            if score is None or not found.holds:
                return found
            score.add([])
        elif score is None:
            score, note = Score(found[0]), found[1]
        else:
            score.add(found[0])
        if not score.open:
            break
    worst = score.worst
    if worst.problem:
        return Check(name, False, worst.problem + note)
    detail = f"{worst.name} has the largest difference{note}"
    return Check(name, score.failed is None, detail, worst.error, worst.bound)


def _moved(t: Any, n: int) -> Any:
    """Inputs of round n: each value is smaller by up to `_MOVED`, equal ones alike, and zeros stay.

    Of inputs that are scaled alike, behind a BatchNorm, the same values would lie at kinks in each round.
    """
    if not n or not isinstance(t, Tensor) or not t.is_floating_point():
        return t
    exact = t.detach().double()
    share = torch.frexp(exact)[0].nan_to_num(0, 0, 0) * (math.pi * (301 + 37 * n)) % 1.0
    return (exact * (1.0 - max(_MOVED, 8 * torch.finfo(t.dtype).eps) * share)).to(t.dtype)


def _moved_model(model: nn.Module, n: int) -> nn.Module:
    """The model of round n: a copy whose parameters are moved as inputs are, but for those of equal values.

    In eval(), what depends on the input may fade from layer to layer, until moved inputs change less than rounding
    does. There the same values would lie at kinks in each round.
    """
    if not n:
        return model
    model = quiet_copy(model, stock=False)
    with torch.no_grad():
        for p in model.parameters():
            if not is_lazy(p) and (p.flatten() != p.flatten()[:1]).any():
                p.copy_(_moved(p, n))
    return model


def _compare_once(
    stock: nn.Module,
    swapped: nn.Module,
    inputs: tuple[Any, ...],
    layout: str,
    mode: str,
    name: str,
    ordered: bool = False,
    isolated: bool = False,
) -> Check | tuple[list[Difference], str]:
    """A check if all is bit-equal or a run fails; else the differences, and a note on random numbers."""
    step = partial(_step, layout=layout, mode=mode, ordered=ordered, isolated=isolated)
    note, terms = _how_drawn(ordered, isolated), Terms()
    try:
        theirs, drew = step(stock, inputs, terms=terms)
    except Exception as error:
        if ordered or isolated:
            return Check(name, False, f"it does not run: {error}".splitlines()[0] + note)
        check = _check_where_stock_fails(swapped, inputs, layout, mode, name, error)
        left_out = hooks_left_out(stock)
        return replace(check, detail=f"{check.detail}; {left_out}") if left_out else check
    try:
        ours, _ = step(swapped, inputs)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}".splitlines()[0] + note)
    if list(ours) != list(theirs):
        return Check(
            name, False, f"{sorted(set(ours) ^ set(theirs))[:3]} are in one of the results only{note}"
        )
    unequal = [k for k in ours if not same(ours[k], theirs[k])]
    if unequal and drew and not (ordered or isolated):
        how = layout != "contiguous", threading.active_count() > 1
        if any(how):
            return _compare_once(stock, swapped, inputs, layout, mode, name, *how)
    if not unequal:
        return Check(name, True, f"bit-equal{note}")
    try:
        truth = _truth(step, stock, inputs, terms)
    except Exception as error:
        return Check(
            name, False, f"{unequal[0]} differs, and another run fails: {error}".splitlines()[0] + note
        )
    runs = [theirs]
    if layout != "contiguous":
        with suppress(Exception):  # a module may refuse the format
            runs.append(step(stock, inputs, held=True)[0])
    return [
        difference(
            k,
            ours[k],
            [run[k] for run in runs],
            truth[k],
            terms.magnitude.get(k, 0.0) or spread(k, truth),
            terms.error.get(k, 0.0),
        )
        for k in unequal
    ], note


def _truth(
    step: Callable[..., Any], stock: nn.Module, inputs: tuple[Any, ...], terms: Terms
) -> dict[str, Tensor]:
    """The results of a step in float64, with the random numbers of the dtype that the inputs have.

    If the model does not run so, what its code computes in float32 is computed in float64 too.
    """
    model, wide = quiet_copy(stock, stock=False).double(), _double(inputs)
    floats = [t for t in (*tree_leaves(inputs), *stock.parameters()) if _is_floating(t)]
    drawn = floats[0].dtype if floats else torch.get_default_dtype()
    try:
        with InDouble(drawn):
            return step(model, wide, terms=terms)[0]
    except Exception:
        with InDouble(drawn, widens=True):
            return step(model, wide, terms=terms)[0]


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _how_drawn(ordered: bool, isolated: bool) -> str:
    """If the models keep other memory formats, the same seed gives other elements the same numbers. Other threads may
    have drawn some of them.
    """
    if not (ordered or isolated):
        return ""
    how = " in the order of elements" * ordered + " from a generator of its own" * isolated
    return f"; random numbers are drawn{how}"


def _check_where_stock_fails(
    swapped: nn.Module, inputs: tuple[Any, ...], layout: str, mode: str, name: str, error: Exception
) -> Check:
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        _step(swapped, inputs, layout, mode)
    except Exception as ours:
        return Check(name, type(ours) is type(error), f"both raise {said}")
    return Check(name, True, f"runs; the original model raises {said}")


def _double(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tree_map(lambda t: t.double() if _is_floating(t) else t, inputs)


def _step(
    model: nn.Module,
    inputs: tuple[Any, ...],
    layout: str,
    mode: str,
    ordered: bool = False,
    isolated: bool = False,
    held: bool = False,
    terms: Terms | None = None,
) -> tuple[dict[str, Tensor], bool]:
    """Outputs, gradients and buffers of one step of a copy; every step draws the same random numbers.

    Returns: these, and whether the forward drew from torch's generator.

    Args:
        mode: one of `_MODES`; "inference" is eval() without a graph.
        ordered: random numbers are drawn in the order of elements, not of memory.
        isolated: random numbers are drawn from a generator that other threads do not know.
        held: every innermost module but a scripted one gets its inputs in the layout, which a stock model may lose on
            the way.
        terms: sees the backward.
    """
    model = quiet_copy(model, stock=False)
    model.train(mode == "train")  # an override may return None
    formats = _FORMATS[layout]
    for module in model.modules() if held else ():
        if next(module.children(), None) is None and not isinstance(module, torch.jit.ScriptModule):
            module.register_forward_pre_hook(partial(_hold, formats))
    if layout != "contiguous":
        for ndim, memory_format in formats.items():
            if any(p.dim() == ndim for p in model.parameters()):
                model.to(memory_format=memory_format)
    inputs = tree_map(lambda t: _prepared(t, formats) if isinstance(t, Tensor) else t, inputs)
    own = OwnDraws(0) if isolated else None
    generator = torch.default_generator if own is None else own.generator
    graph = torch.set_grad_enabled(mode != "inference")
    with generators_kept(), DryRuns(model).undone(), graph, own or nullcontext():
        seed_generators(0)
        state = generator.get_state()
        with OrderedDraws(generator) if ordered else nullcontext():
            results = dict(_named("output", model(*inputs)))
        drew = not torch.equal(generator.get_state(), state)
        seed_generators(1)
        factors = torch.Generator("cpu").manual_seed(1)
        loss = [
            (y * torch.randn(y.shape, dtype=torch.float32, device="cpu", generator=factors).to(y)).sum()
            for y in results.values()
            if y.requires_grad and y.is_floating_point()
        ]
        if loss and terms is not None:
            terms.watch(model, results.values())
        if loss:
            torch.stack([x.double() for x in loss]).sum().backward()
    results = {k: y.detach() for k, y in results.items()}
    results |= {f"gradient of {k}": t.grad for k, t in _named("input", inputs) if t.grad is not None}
    results |= {f"gradient of {k}": p.grad for k, p in model.named_parameters() if p.grad is not None}
    return results | dict(model.named_buffers()), drew


def _prepared(t: Tensor, formats: dict[int, torch.memory_format]) -> Tensor:
    return _in_format(t.detach().clone(), formats).requires_grad_(t.is_floating_point())


def _in_format(t: Any, formats: dict[int, torch.memory_format]) -> Any:
    if isinstance(t, Tensor) and t.dim() in formats:
        return t.contiguous(memory_format=formats[t.dim()])
    return t


def _hold(formats: dict[int, torch.memory_format], module: nn.Module, args: tuple[Any, ...]) -> Any:
    """A hook that brings inputs into the format. MaxPool3d refuses images in channels_last."""
    dims = {5} if isinstance(module, nn.MaxPool3d) else set(formats)
    return tree_map(lambda t: _in_format(t, {n: formats[n] for n in dims}), args)


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    for i, t in enumerate(tree_leaves(value)):
        if isinstance(t, Tensor):
            yield f"{name} {i}", t
