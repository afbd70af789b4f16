# SPDX-License-Identifier: MIT
"""Run a model as it was and swapped, on copies, and compare everything that a training step produces."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .report import Check, Report

__all__ = ["FACTOR", "VerificationError", "compare"]

FACTOR = 4.0  # times the stock model's own error
# Times the dtype's epsilon, below which an error is none. Torch's own normalisations round by more in channels_last,
# which a stock model may have left at its first shuffle.
_FLOOR = {"contiguous": 32.0, "channels_last": 1024.0}
_FORMATS = {
    "contiguous": {4: torch.contiguous_format, 5: torch.contiguous_format},
    "channels_last": {4: torch.channels_last, 5: torch.channels_last_3d},
}


class VerificationError(RuntimeError):
    """A swapped model does not compute what the model computes; the message has the table."""


def compare(stock: nn.Module, swapped: nn.Module, inputs: tuple[Any, ...], report: Report) -> Report:
    """The report with one check for every mode and memory format; see `opswap.verify`.

    Args: stock, swapped: copies, which are used up; inputs: a tuple of positional inputs.
    Raises: VerificationError where a check fails.
    """
    checks = []
    for layout in _FORMATS:
        if layout != "contiguous" and not any(isinstance(t, Tensor) and t.dim() in (4, 5) for t in inputs):
            continue
        for training in (True, False):
            mode = "train" if training else "eval"
            checks.append(_check(stock, swapped, inputs, layout, training, f"{mode}, {layout}"))
    result = replace(report, checks=checks)
    if not all(c.holds for c in checks):
        raise VerificationError(f"verify: the swapped model differs\n{result}")
    return result


def _check(
    stock: nn.Module, swapped: nn.Module, inputs: tuple[Any, ...], layout: str, training: bool, name: str
) -> Check:
    try:
        theirs = _step(stock, inputs, layout, training)
    except Exception as error:
        return _check_where_stock_fails(swapped, inputs, layout, training, name, error)
    try:
        ours = _step(swapped, inputs, layout, training)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}".splitlines()[0])
    if list(ours) != list(theirs):
        return Check(name, False, f"{sorted(set(ours) ^ set(theirs))[:3]} are in one of the results only")
    unequal = [k for k in ours if not _same(ours[k], theirs[k])]
    if not unequal:
        return Check(name, True, "bit-equal")
    try:
        truth = _step(copy.deepcopy(stock).double(), _double(inputs), layout, training)
    except Exception as error:
        return Check(name, False, f"{unequal[0]} differs, and float64 fails: {error}".splitlines()[0])
    return _check_errors(name, _FLOOR[layout], [(k, ours[k], theirs[k], truth[k]) for k in unequal])


def _check_where_stock_fails(
    swapped: nn.Module, inputs: tuple[Any, ...], layout: str, training: bool, name: str, error: Exception
) -> Check:
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        _step(swapped, inputs, layout, training)
    except Exception as ours:
        return Check(name, type(ours) is type(error), f"both raise {said}")
    return Check(name, True, f"runs, where the model as it was raises {said}")


def _check_errors(name: str, floor: float, unequal: list[tuple[str, Tensor, Tensor, Tensor]]) -> Check:
    """The tensor whose error is the largest share of what is allowed decides."""
    worst: tuple[float, str, float, float] = (-1.0, "", 0.0, 0.0)
    for key, ours, theirs, truth in unequal:
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return Check(name, False, f"{key} is {_kind(ours)}, was {_kind(theirs)}")
        error, bound = _error(ours, truth), _error(theirs, truth)
        allowed = FACTOR * bound
        if ours.dtype.is_floating_point:
            allowed += floor * torch.finfo(ours.dtype).eps
        share = error / allowed if allowed else float("inf")
        share = share if share == share else float("inf")
        worst = max(worst, (share, key, error, bound))
    share, key, error, bound = worst
    return Check(name, share <= 1.0, f"{key} has the largest difference", error, bound)


def _kind(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')}{tuple(t.shape)}"


def _error(t: Tensor, truth: Tensor) -> float:
    """The largest difference, as a share of the largest value; NaN and infinities must be at the same places."""
    t, truth = t.double(), truth.double()
    if not torch.equal(t.isfinite(), truth.isfinite()):
        return float("inf")
    t, truth = t.nan_to_num(0, 0, 0), truth.nan_to_num(0, 0, 0)
    if not t.numel():
        return 0.0
    return float((t - truth).abs().max() / truth.abs().max().clamp_min(1e-30))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _double(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tree_map(lambda t: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t, inputs)


def _step(model: nn.Module, inputs: tuple[Any, ...], layout: str, training: bool) -> dict[str, Tensor]:
    """Outputs, gradients and buffers of one step of a copy; every step draws the same random numbers."""
    model = copy.deepcopy(model).train(training)
    formats = _FORMATS[layout]
    if layout != "contiguous":
        for ndim, memory_format in formats.items():
            if any(p.dim() == ndim for p in model.parameters()):
                model.to(memory_format=memory_format)
    inputs = tree_map(lambda t: _prepared(t, formats) if isinstance(t, Tensor) else t, inputs)
    devices = sorted({t.device.index or 0 for t in model.parameters() if t.is_cuda})
    with torch.random.fork_rng(devices), torch.enable_grad():
        torch.manual_seed(0)
        results = dict(_named("output", model(*inputs)))
        torch.manual_seed(1)
        loss = [
            (y * torch.randn(y.shape).to(y)).sum()
            for y in results.values()
            if y.requires_grad and y.is_floating_point()
        ]
        if loss:
            torch.stack([x.double() for x in loss]).sum().backward()
    results = {k: y.detach() for k, y in results.items()}
    results |= {f"gradient of {k}": t.grad for k, t in _named("input", inputs) if t.grad is not None}
    results |= {f"gradient of {k}": p.grad for k, p in model.named_parameters() if p.grad is not None}
    return results | dict(model.named_buffers())


def _prepared(t: Tensor, formats: dict[int, torch.memory_format]) -> Tensor:
    t = t.detach().clone()
    if t.dim() in formats:
        t = t.contiguous(memory_format=formats[t.dim()])
    return t.requires_grad_(t.is_floating_point())


def _named(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    for i, t in enumerate(tree_leaves(value)):
        if isinstance(t, Tensor):
            yield f"{name} {i}", t
