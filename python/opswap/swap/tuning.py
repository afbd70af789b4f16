# SPDX-License-Identifier: MIT
"""Measure every rule that has an example against torch, on this machine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opswap._progress import Update
from opswap._timing import ratio_spread, time_in_turn
from opswap._torch import tree_leaves
from opswap.ops._layout import CHANNELS_LAST
from opswap.ops._stats import stats

from .api import swap
from .capture.quiet import generators_kept
from .explain import explain
from .planning import gains
from .rules import DEFAULT, OPTIONAL, Rule

__all__ = ["tune"]

_FORMATS = {"contiguous": {}, "channels_last": CHANNELS_LAST}


def tune(
    rules: Sequence[Rule] | None = None, *, rounds: int = 9, progress: Update | None = None
) -> dict[str, dict[str, float]]:
    """Measure every rule that has an example against torch, and keep the result for this machine.

    Other threads may train swapped models meanwhile, but falsify the times. The random generators of the
    process are put back as they were: numbers that they draw from them meanwhile are drawn again.

    Args:
        rules: None is all of them.
        rounds: timed steps of each form, in random order; the median of their ratios counts.
        progress: is called with the name of each rule before it is measured, the number of rules done, and of all.
    Returns: {rule: {memory format: time of torch / time of opswap}}, of forward and backward.
    Raises: OSError if the cache folder cannot be written.
    """
    rules = DEFAULT + OPTIONAL if rules is None else rules
    names = len({rule.name for rule in rules if rule.example is not None})
    table: dict[str, dict[str, float]] = {}
    for rule in rules:
        if rule.example is not None and rule.name not in table:
            if progress is not None:
                progress(rule.name, len(table), names)
            with generators_kept():
                module, shapes = rule.example()
                timed = {k: _timed(rule, module, shapes, k, rounds) for k in _FORMATS}
            table[rule.name] = _ratios(timed)
    gains.keep_gains(gains.cache_file(), table)
    gains.forget_tables()
    return table


def _ratios(timed: dict[str, _Timed | None]) -> dict[str, float]:
    """By memory format. A rule that has a kernel is timed where it runs one: elsewhere its code is torch's."""
    found = {k: t for k, t in timed.items() if t is not None}
    has_kernel = any(t.kernel for t in found.values())
    return {k: t.ratio for k, t in found.items() if t.kernel or not has_kernel}


@dataclass(frozen=True)
class _Timed:
    """Time of torch over ours, and whether ours ran a kernel."""

    ratio: float
    kernel: bool


def _timed(
    rule: Rule, module: nn.Module, shapes: Sequence[tuple[int, ...]], layout: str, rounds: int
) -> _Timed | None:
    """None if torch, or the replacement, leaves this memory format out."""
    stock = module.train()
    ours = swap(copy.deepcopy(stock), rules=[rule])
    inputs = [_input(shape, layout) for shape in shapes]
    try:
        theirs = _step(stock, inputs)
    except RuntimeError:
        return None
    before = stats()
    forms = {"stock": theirs, "swapped": _step(ours, inputs)}
    kernel = stats()["kernel"] != before["kernel"]
    if not kernel and (stats() != before or not any(o.ran for o in explain(ours, *inputs).outcomes)):
        return None
    times = time_in_turn(forms, 0.0, rounds)
    return _Timed(round(ratio_spread(times["stock"], times["swapped"]).median, 3), kernel)


def _input(shape: tuple[int, ...], layout: str) -> Tensor:
    memory_format = _FORMATS[layout].get(len(shape), torch.contiguous_format)
    return (
        torch.randn(shape, dtype=torch.float32, device="cpu")
        .contiguous(memory_format=memory_format)
        .requires_grad_()
    )


def _step(module: nn.Module, inputs: Sequence[Tensor]) -> Callable[[], Any]:
    """Forward and backward, after a first run."""
    leaves = [*inputs, *module.parameters()]

    def outputs() -> list[Tensor]:
        return [y for y in tree_leaves(module(*inputs)) if y.requires_grad]

    def step() -> Any:
        return torch.autograd.grad(outputs(), leaves, grads, allow_unused=True)

    grads = [torch.ones_like(y) for y in outputs()]
    step()
    return step
