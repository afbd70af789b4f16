# SPDX-License-Identifier: MIT
"""Measure every rule that has an example against torch, on this machine."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opswap._torch import tree_leaves
from opswap.ops._stats import stats

from .api import swap
from .planning import gains
from .rules import DEFAULT, OPTIONAL, Rule

__all__ = ["tune"]

_FORMATS = {
    "contiguous": {},
    "channels_last": {4: torch.channels_last, 5: torch.channels_last_3d},
}


def tune(rules: Sequence[Rule] | None = None, *, rounds: int = 9) -> dict[str, dict[str, float]]:
    """Measure every rule that has an example against torch, and keep the result for this machine.

    Args: rules: None is all of them; rounds: timed steps of each form, in random order.
    Returns: {rule: {memory format: time of torch / time of opswap}}, of forward and backward.
    Raises: OSError if the cache folder cannot be written.
    """
    table: dict[str, dict[str, float]] = {}
    for rule in DEFAULT + OPTIONAL if rules is None else rules:
        if rule.example is not None and rule.name not in table:
            module, shapes = rule.example()
            ratios = {k: _ratio(rule, module, shapes, k, rounds) for k in _FORMATS}
            table[rule.name] = {k: ratio for k, ratio in ratios.items() if ratio is not None}
    gains.keep_gains(gains.cache_file(), table)
    gains.forget_tables()
    return table


def _ratio(
    rule: Rule, module: nn.Module, shapes: Sequence[tuple[int, ...]], layout: str, rounds: int
) -> float | None:
    """Time of torch over ours, None where torch, or every kernel of ours, leaves this memory format out."""
    stock = module.train()
    ours = swap(copy.deepcopy(stock), rules=[rule])
    inputs = [_input(shape, layout) for shape in shapes]
    try:
        _step(stock, inputs)
    except RuntimeError:
        return None
    before = stats()["kernel"]
    _step(ours, inputs)
    if stats()["kernel"] == before:
        return None
    best = {stock: math.inf, ours: math.inf}
    with torch.random.fork_rng([]):
        for i in range(rounds + 1):
            order = [stock, ours]
            random.Random(i).shuffle(order)
            for m in order:
                seconds = _step(m, inputs)
                if i:
                    best[m] = min(best[m], seconds)
    return round(best[stock] / best[ours], 3)


def _input(shape: tuple[int, ...], layout: str) -> Tensor:
    memory_format = _FORMATS[layout].get(len(shape), torch.contiguous_format)
    return (
        torch.randn(shape, dtype=torch.float32, device="cpu")
        .contiguous(memory_format=memory_format)
        .requires_grad_()
    )


def _step(module: nn.Module, inputs: Sequence[Tensor]) -> float:
    begin = time.perf_counter()
    outputs: list[Any] = [y for y in tree_leaves(module(*inputs)) if y.requires_grad]
    forward = time.perf_counter() - begin
    grads = [torch.ones_like(y) for y in outputs]
    begin = time.perf_counter()
    torch.autograd.grad(outputs, [*inputs, *module.parameters()], grads, allow_unused=True)
    return forward + time.perf_counter() - begin
