# SPDX-License-Identifier: MIT
"""Time the ways to run a merged module, and pick the fastest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opswap._draws import generators_kept
from opswap._timing import medians_in_turn
from opswap._torch import tree_leaves

from .layers.conv import BranchConv
from .plan import Plan
from .program import Program, Step
from .trace import Trace

__all__ = ["MODES", "Timing", "convolution_calls", "measuring", "pick_plans"]

MODES = ("training", "inference")
# What another way must gain over the first one before it is taken: timings differ by as much by themselves. Of whole
# programs the loop is the first: what is merged has to be clearly faster than that.
_GAIN, _GAIN_OF_PROGRAMS = 0.97, 0.95


@dataclass(frozen=True)
class Timing:
    """Median milliseconds of every way to run one convolution, or the whole module if path is ""."""

    mode: str
    elements: int
    path: str
    ms: Mapping[str, float]
    chosen: str


def pick_plans(
    root: nn.Module,
    traced: Trace,
    inputs: Sequence[Any],
    enter: Callable[[Program, Sequence[Any]], list[Any]],
    make: Callable[[Plan], Program],
    seconds: float,
) -> Iterator[tuple[str, Plan, list[tuple[str, Mapping[str, float], str]]]]:
    """For training and inference the fastest plan, and (path, milliseconds, chosen) of everything timed.

    Args: enter: brings inputs into the forms of a program. make: builds the program of a plan.
    """
    wide = make(Plan())
    twin = copy.deepcopy(root)
    twin.zero_grad()
    for mode in MODES:
        with measuring(mode):
            rows, ways = _time_convolutions(twin, wide, enter(wide, inputs), mode, seconds / 2)
            programs = {Plan(): wide} | _that_can_be_built(make, _plans(traced, ways))
            calls = {
                plan.label: _call(twin, program, enter(program, inputs), mode)
                for plan, program in programs.items()
            }
            ms = medians_in_turn(calls, seconds / 2)
            chosen = _fastest(ms, "loop" if "loop" in ms else "wide", _GAIN_OF_PROGRAMS)
            plan = next(p for p in programs if p.label == chosen)
            yield mode, plan, [*rows, ("", ms, chosen)]


def _that_can_be_built(make: Callable[[Plan], Program], plans: Sequence[Plan]) -> dict[Plan, Program]:
    """The programs of the plans, but of those by which something in the branches cannot run."""
    found = {}
    for plan in plans:
        with suppress(ValueError):
            found[plan] = make(plan)
    return found


@contextmanager
def measuring(mode: str) -> Iterator[None]:
    """Gradients on or off; random generators are left as they were."""
    with generators_kept(), torch.set_grad_enabled(mode == "training"):
        yield


def _plans(traced: Trace, ways: Mapping[str, str]) -> list[Plan]:
    """Everything merged; convolutions as measured, alone or with what follows; the loop over images; all a loop."""
    calls = {n: traced.values[n] for n in traced.graph.nodes if n.op.startswith("call")}
    images = frozenset(n.name for n, sizes in calls.items() if isinstance(sizes, tuple) and len(sizes) > 3)
    everything = frozenset(n.name for n in calls)
    loop = frozenset(node for node, way in ways.items() if way == "loop")
    others = frozenset((node, way) for node, way in ways.items() if way not in ("loop", "grouped"))
    plans = [
        Plan(label="wide"),
        Plan(loop, others, label="fastest convolutions"),
        Plan(loop, others, follow=bool(loop), label="fastest convolutions, loops joined"),
        Plan(images, label="loop over images"),
        Plan(everything, follow=True, label="loop"),
    ]
    return [plan for i, plan in enumerate(plans) if plan not in plans[:i]]


def _call(root: nn.Module, program: Program, values: list[Any], mode: str) -> Callable[[], Any]:
    if mode == "inference":
        return lambda: program.run(root, values)

    def step() -> None:
        outputs = tree_leaves(program.run(root, values))
        total = [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]
        if total:
            torch.autograd.backward(total, [torch.ones_like(y) for y in total])
            root.zero_grad()

    return step


def _time_convolutions(
    root: nn.Module, program: Program, values: list[Any], mode: str, seconds: float
) -> tuple[list[tuple[str, Mapping[str, float], str]], dict[str, str]]:
    """Rows, and the fastest way of every convolution by the name of its node."""
    seen: list[tuple[Step, Tensor]] = []

    def watch(step: Step, args: tuple[Any, ...]) -> None:
        if step.layer and len(args) == 2 and args[1] == "wide":
            layer = root.get_submodule(".".join(step.layer))
            if isinstance(layer, BranchConv):
                seen.append((step, args[0].detach().clone()))

    program.run(root, values, watch)
    rows, chosen = [], {}
    for step, x in seen:
        layer = root.get_submodule(".".join(step.layer))
        ms = medians_in_turn(convolution_calls(layer, x, mode), seconds / len(seen))
        chosen[step.node] = _fastest(ms, "grouped")
        rows.append((".".join(step.layer), ms, chosen[step.node]))
    return rows, chosen


def convolution_calls(layer: Any, x: Tensor, mode: str) -> dict[str, Callable[[], Any]]:
    """Every way to run a merged convolution on x, "grouped" first; forward and backward in training."""
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "grouped": lambda x: layer(x, "wide"),
        "loop": lambda x: layer(x, "chunks"),
    }
    ways |= {way: lambda x, way=way: layer(x, way) for way in layer.ways if way != "chunks"}
    if mode == "inference":
        return {name: lambda way=way: way(x) for name, way in ways.items()}
    x = x.requires_grad_()
    leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
    gradient = torch.ones_like(layer(x, "wide"))
    return {name: lambda way=way: torch.autograd.grad(way(x), leaves, gradient) for name, way in ways.items()}


def _fastest(ms: Mapping[str, float], first: str, gain: float = _GAIN) -> str:
    best = min(ms, key=lambda way: ms[way])
    return best if ms[best] < gain * ms[first] else first
