# SPDX-License-Identifier: MIT
"""What the finders cost a step, counted: operators, calls in the interpreter, and the state that they leave."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import opswap
from opswap._torch import DispatchMode, dispatch_modes

# Calls in the interpreter for each operator. One takes 0.1 to 0.3 microseconds, an operator of a small network 10 and
# more: with these bounds a watched step stays below three plain ones, but for the smallest tensors.
# Of a swapped model an operator does more, and there are fewer.
FINDERS = {
    "layout": (opswap.layout.check, {"stock": 90, "swapped": 110}),
    "shapes": (opswap.shapes.detect, {"stock": 35, "swapped": 42}),
    "denormals": (opswap.memory.denormals, {"stock": 105, "swapped": 150}),
}


class Counted(DispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def events(step: Callable[[], None]) -> int:
    """Calls of Python and C functions in a step."""
    count = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # what other tests left behind may have finalizers, which would count
    sys.setprofile(seen)
    try:
        step()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("form", ["stock", "swapped"])
@pytest.mark.parametrize("name", FINDERS)
def test_a_watched_step(name: str, form: str) -> None:
    make, most_calls = FINDERS[name]
    last = torch.channels_last
    net = opswap.models.shufflenet_v2_x0_5().to(memory_format=last)
    if form == "swapped":
        net = opswap.swap(net)
    x = torch.randn(2, 3, 64, 64).to(memory_format=last)

    def step() -> None:
        net(x).sum().backward()

    step()
    with Counted() as plain:
        step()
    context = make(net)
    with Counted() as watched, context:
        step()
    assert watched.count == plain.count, "it runs operators that other modes see"
    before = events(step)
    context = make(net)
    with context:
        step()  # hints and names are made once
        first, second = events(step), events(step)
    assert (first - before) / plain.count < most_calls[form]
    assert abs(second - first) < 0.01 * first, "a step costs what the one before did"
    assert events(step) == pytest.approx(before, rel=0.01) and not dispatch_modes()
    assert isinstance(net, nn.Module) and not torch.nn.modules.module._global_forward_pre_hooks
