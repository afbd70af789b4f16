# SPDX-License-Identifier: MIT
"""Time of one operator, and of a whole step, with and without flushing; everything is put back afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor, nn

from opswap._draws import generators_kept
from opswap._timing import medians_in_turn
from opswap._torch import tree_map

from .switches import flush_denormals, flush_state_kept

__all__ = ["can_run_again", "time_operator", "time_step"]

_NAMESPACES = ("aten", "opswap")
_RANDOM = torch.Tag.nondeterministic_seeded
_STEP_SECONDS = 2.0


def can_run_again(func: Any) -> bool:
    """True for an operator of torch or opswap that draws no random numbers."""
    return func.namespace in _NAMESPACES and _RANDOM not in func.tags


def time_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int] | None:
    """Nanoseconds of one call without and with flushing, the faster of two each; None if that cannot be measured.

    The operator draws no random numbers. One that writes its arguments, or is a normalisation, which may do so unsaid,
    works on copies of them.
    """
    if func._schema.is_mutable or "norm" in func._schema.name:
        args, kwargs = tree_map(_copied, (args, kwargs))
    with flush_state_kept() as works:
        if not works:
            return None
        try:
            flush_denormals(False)
            normal = _time_once(func, args, kwargs)
            flush_denormals(True)
            flushed = min(_time_once(func, args, kwargs) for _ in range(2))
            flush_denormals(False)
            return min(normal, _time_once(func, args, kwargs)), flushed
        except RuntimeError:
            return None  # such as one that finds its argument freed by the first call


def _time_once(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    start = perf_counter_ns()
    func(*args, **kwargs)
    return perf_counter_ns() - start


def time_step(step: Callable[[], Any], model: nn.Module, inputs: Sequence[Any]) -> tuple[float, float] | None:
    """Median seconds of one step without and with flushing, in turn for about two seconds.

    Gradients, buffers and random numbers are as before, afterwards. None if the processor has no switch.
    """
    with flush_state_kept() as works, generators_kept(), _state_kept(model, inputs):
        if not works:
            return None

        def flushed(state: bool) -> None:
            flush_denormals(state)
            step()

        ms = medians_in_turn(
            {str(state): partial(flushed, state) for state in (False, True)}, _STEP_SECONDS, 1
        )
    return ms["False"] / 1e3, ms["True"] / 1e3


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


@contextlib.contextmanager
def _state_kept(model: nn.Module, inputs: Sequence[Any]) -> Iterator[None]:
    """Buffers and gradients of the model, and gradients of the inputs, come back as they were."""
    leaves = [*model.parameters(), *(x for x in inputs if isinstance(x, Tensor) and x.is_leaf)]
    gradients = [leaf.grad for leaf in leaves]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    for leaf in leaves:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
