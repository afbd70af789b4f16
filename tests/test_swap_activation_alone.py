# SPDX-License-Identifier: MIT
"""Rule activation: Mish, and GELU by tanh in float32, without a BatchNorm before them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from counted import kernels
from opswap.swap.rules import activation_alone
from spellings.guards import Only
from step import outputs_and_gradients

pytestmark = pytest.mark.usefixtures("one_thread")

SPELLINGS = {
    "Mish": nn.Sequential(nn.Mish()),
    "F.mish": Only(lambda x: F.mish(x)),
    "F.mish by name": Only(lambda x: F.mish(input=x)),
    "GELU": nn.Sequential(nn.GELU(approximate="tanh")),
    "F.gelu": Only(lambda x: F.gelu(x, approximate="tanh")),
}
SHAPES = [(6, 5, 7, 3), (6, 5, 2, 7, 3), (4, 9, 8), (7, 12), (50,), (1, 30)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_alone, "_FEWEST", {"mish": 1, "gelu_tanh": 1})


def ran(model: nn.Module, x: Tensor) -> bool:
    (outcome,) = opswap.explain(model, x).outcomes
    return outcome.ran == 1


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SPELLINGS)
def test_as_near_to_float64_as_torch(name: str, shape: tuple[int, ...], last: bool) -> None:
    stock = SPELLINGS[name]
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    assert [(s.rule, s.exact) for s in opswap.report(model).swapped] == [("activation", False)]
    x = torch.randn(shape) * 3
    if last and len(shape) in (4, 5):
        x = x.contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    opswap.reset_stats()
    assert model(x).stride() == stock(x).stride() and kernels() == 1 and ran(model, x)
    true = outputs_and_gradients(stock, x.double())
    for ours, theirs, t in zip(
        outputs_and_gradients(model, x), outputs_and_gradients(stock, x), true, strict=True
    ):
        ulp = torch.finfo(torch.float32).eps * t.abs().max()
        assert (ours - t).abs().max() <= (theirs - t).abs().max() + ulp


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5, 6, dtype=dtype)
    for stock, runs in ((nn.Mish(), True), (nn.GELU(approximate="tanh"), False)):
        model = opswap.swap(copy.deepcopy(stock))
        assert ran(model, x) is runs
        eps = torch.finfo(dtype).eps
        for a, b in zip(outputs_and_gradients(model, x), outputs_and_gradients(stock, x), strict=True):
            torch.testing.assert_close(a, b, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 4, 5, 6).double(),
        torch.randn(3, 4, 5, 12)[..., ::2],
        torch.randn(5, 4, 3).transpose(0, 2),
        torch.empty(0, 4),
    ],
)
def test_what_stays_torchs(x: Tensor) -> None:
    for stock in (nn.Mish(), nn.GELU(approximate="tanh")):
        model = opswap.swap(copy.deepcopy(stock))
        opswap.reset_stats()
        assert torch.equal(model(x), stock(x)) and not kernels()


@pytest.mark.parametrize("stock", [nn.Mish(inplace=True), nn.GELU(), nn.SiLU(), nn.Hardswish()])
def test_other_activations(stock: nn.Module) -> None:
    model = opswap.swap(nn.Sequential(nn.Conv2d(3, 4, 1), copy.deepcopy(stock)), rules=activation_alone.RULES)
    assert not opswap.report(model).swapped


def test_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = opswap.swap(nn.Mish())
    (outcome,) = opswap.explain(model, torch.randn(2, 6, 5, 7)).outcomes
    assert not outcome.ran and "32768 elements" in outcome.reason


@pytest.mark.parametrize("stock", [nn.Mish(), nn.GELU(approximate="tanh")])
def test_transforms(stock: nn.Module) -> None:
    model, x = opswap.swap(copy.deepcopy(stock)), torch.randn(3, 2, 4, 4)
    wide = x.double().requires_grad_()
    results: list[list[Any]] = []
    for m in (stock, model):
        tangents = torch.func.jvp(m, (x,), (torch.ones_like(x),))
        results.append(
            [
                torch.func.vmap(m)(x),
                torch.func.grad(lambda v, m=m: m(v).square().sum())(x),
                *tangents,
                torch.compile(m, backend="aot_eager", fullgraph=True)(x),
            ]
        )
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    assert torch.autograd.gradcheck(model, wide) and torch.autograd.gradgradcheck(model, wide)
    near = x.clone().requires_grad_()
    first, second = (torch.autograd.grad(m(near).sum(), near, create_graph=True)[0] for m in (stock, model))
    torch.testing.assert_close(*(torch.autograd.grad(g.sum(), near)[0] for g in (first, second)))


def test_behind_a_batch_norm_and_alone() -> None:
    """One entry in the report; where the two are not computed in one, the activation still is."""
    stock = nn.Sequential(nn.BatchNorm2d(6), nn.Mish())
    model = opswap.swap(copy.deepcopy(stock))
    assert [(s.path, s.rule) for s in opswap.report(model).swapped] == [("0", "batch_norm_act")]
    x = torch.randn(4, 6, 20, 18)
    opswap.reset_stats()
    model(x)
    assert kernels() == 1
    model[0].register_forward_hook(lambda m, args, y: None)
    opswap.reset_stats()
    torch.testing.assert_close(model(x), stock(x), atol=1e-5, rtol=1e-5)
    assert kernels() == 2  # one of each
