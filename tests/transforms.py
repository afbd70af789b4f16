# SPDX-License-Identifier: MIT
"""What the tests of transforms share: the table of calls, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import opswap
from functional_cases import FUNCTIONS, RANDOM, Case, as_tuple
from opswap.ops.depthwise import depthwise_wins
from opswap.ops.dropout import draws_alike
from opswap.ops.pointwise import pointwise_wins

Function = Callable[..., Any]


def _is_whole(case: Case) -> bool:
    """False for another memory format of the same call, and for a dropout that returns its input."""
    last = case.channels_last or all(len(size) not in (4, 5) for size in case.sizes)
    return last and not (case.name == "dropout" and case not in RANDOM)


CASES = [case for case in (*FUNCTIONS, *RANDOM) if _is_whole(case)]
every_case = pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case}" for i, case in enumerate(CASES)])
every_layout = pytest.mark.parametrize("case", [*FUNCTIONS, *RANDOM], ids=repr)
# One call of each function, for what takes long.
_FIRST = [
    *{case.name: case for case in reversed(CASES)}.values(),
    next(case for case in CASES if case.sizes == ((7, 3, 5), (6, 5), (1, 6))),
]
each_function = pytest.mark.parametrize(
    "case", _FIRST, ids=[f"{i}-{case.name}" for i, case in enumerate(_FIRST)]
)


def operators_of(case: Case) -> tuple[str, ...]:
    """Those that stand in a graph on this machine."""
    left = {"pointwise_conv2d": pointwise_wins, "depthwise_conv2d": depthwise_wins, "dropout": draws_alike}
    kept = case.name in left and not left[case.name]()
    kept = kept or (case.name == "conv2d" and opswap.isa.current() != "avx512")
    in_pixels = ("conv2d", "pointwise_conv2d", "depthwise_conv2d", "group_norm", "instance_norm")
    kept = kept or (case.name in in_pixels and not case.channels_last)
    shuffled = case.name == "channel_shuffle" and not case.channels_last
    return () if kept or shuffled else case.operators


def seeded(function: Function) -> Function:
    """The same function, which draws the same random numbers in each call."""

    def run(*tensors: Tensor) -> Any:
        torch.manual_seed(1)
        return function(*tensors)

    return run


def loss(function: Function) -> Callable[..., Tensor]:
    return lambda *tensors: sum((y * 0.5).sin().square().sum() for y in as_tuple(function(*tensors)))


def leaves(case: Case, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those that have a gradient."""
    return [t for i, t in enumerate(tensors) if i not in case.fixed]


def make(case: Case, dtype: torch.dtype = torch.float32, grad: bool = True) -> tuple[Tensor, ...]:
    return tuple(t.requires_grad_(grad and i not in case.fixed) for i, t in enumerate(case.inputs(dtype)))


def step(function: Function, case: Case, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, and gradients of the loss, after one seed."""
    torch.manual_seed(1)
    return traced_step(function, case, tensors)


def traced_step(function: Function, case: Case, tensors: Sequence[Tensor]) -> list[Tensor]:
    """`step` without a seed."""
    made = [t.detach().clone(memory_format=torch.preserve_format) for t in tensors]
    given = [t.requires_grad_(i not in case.fixed) for i, t in enumerate(made)]
    outputs = as_tuple(function(*given))
    value = sum((y * 0.5).sin().square().sum() for y in outputs)
    gradients = torch.autograd.grad(value, leaves(case, given))
    return [*(y.detach() for y in outputs), *gradients]


def argnums(case: Case) -> tuple[int, ...]:
    return tuple(i for i in range(len(case.sizes)) if i not in case.fixed)


def assert_near(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    pairs = zip(as_tuple(ours), as_tuple(theirs), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
