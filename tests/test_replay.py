# SPDX-License-Identifier: MIT
"""A swapped model runs the kernels of a former call: on small inputs, or frozen."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from freed import assert_freed_at_once
from opswap.nn.frozen import FROZEN
from replay_cases import LAST, compare, inputs, kept, made, plans, replaying, runs
from threads import at_once

pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]

BOTH = pytest.mark.parametrize("frozen", [True, False], ids=["frozen", ""])


@BOTH
def test_it_runs_and_counts(frozen: bool) -> None:
    stock, model = replaying(frozen)
    assert runs(model)
    for _ in range(3):
        compare(stock, model)
    with torch.no_grad():
        opswap.reset_stats()
        model(inputs())
        again = opswap.stats()
        kept(model).plans.clear()
        opswap.reset_stats()
        model(inputs())
    assert again == opswap.stats()
    assert again["kernel"]["conv_chain"] == 1


@BOTH
def test_in_the_inference_mode_too(frozen: bool) -> None:
    stock = made()
    with torch.inference_mode():
        model = opswap.swap(copy.deepcopy(stock))
        if frozen:
            opswap.freeze(model)
        for _ in range(5):
            x = inputs()
            result = model(x)
            torch.testing.assert_close(result, stock(x), rtol=1e-4, atol=1e-4)
            assert result.is_inference()
    assert plans(model) == 1
    compare(stock, model)
    assert runs(model)


def odd_inputs() -> Iterator[Tensor]:
    x = inputs()
    yield x.contiguous()
    yield x[:1]
    yield inputs(12)
    yield inputs(9)[:, :, 1:]
    yield torch.randn(2, 1, 8, 8).expand(2, 16, 8, 8)
    yield x.flip(3)
    yield torch.randn(2, 16, 8, 8, dtype=torch.complex64).imag
    yield torch._neg_view(x)
    yield nn.Parameter(x)
    yield torch.full_like(x, float("nan"))
    yield x[:0]


@BOTH
def test_other_inputs(frozen: bool) -> None:
    stock, model = replaying(frozen)
    for x in odd_inputs():
        for _ in range(5):
            with torch.no_grad():
                torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4, equal_nan=True)
        compare(stock, model)
    assert plans(model) <= 8


def test_large_inputs_are_recorded_if_frozen() -> None:
    """A recording holds every result of the call at once."""
    for frozen in (True, False):
        stock, model = replaying(frozen)
        for _ in range(4):
            compare(stock, model, inputs(100))
        assert plans(model) == 1 + frozen


def test_inputs_of_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """More sizes than there are plans: a call is recorded ever more seldom."""
    stock, model = replaying()
    module = sys.modules["opswap.swap.replay.replay"]
    recorded: list[int] = []
    record = module.record  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "record", lambda *args: (recorded.append(1), record(*args))[1])
    for _ in range(30):
        for size in range(8, 20):
            compare(stock, model, inputs(size))
    assert plans(model) == 8
    assert 8 <= len(recorded) < 40


@BOTH
def test_wrong_inputs_raise_as_before(frozen: bool) -> None:
    stock, model = replaying(frozen)
    for x in (inputs().double(), torch.randn(2, 15, 8, 8), inputs().int(), torch.randn(32, 8)):
        for _ in range(5):
            with torch.no_grad(), pytest.raises((RuntimeError, ValueError)):
                stock(x)
            with torch.no_grad(), pytest.raises((RuntimeError, ValueError)):
                model(x)


@BOTH
def test_contexts(frozen: bool) -> None:
    stock, model = replaying(frozen)
    x = inputs()
    with torch.no_grad():
        torch.testing.assert_close(model(x=x), stock(x=x), rtol=1e-4, atol=1e-4)
        assert runs(model)
        with opswap.disabled():
            opswap.reset_stats()
            model(x)
        assert not opswap.stats()["kernel"]
        assert runs(model)
        with opswap.layout.check(model) as report:
            model(x)
        assert report.sites is not None
        mapped = torch.func.vmap(model)(x[None]), stock(x)[None]
        torch.testing.assert_close(*mapped, rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype == stock(x).dtype
    assert "ran" in str(opswap.explain(model, x))
    wanted = model(x.requires_grad_()), stock(x)
    torch.testing.assert_close(*wanted, rtol=1e-4, atol=1e-4)
    assert wanted[0].requires_grad
    traced = torch.jit.trace(model, inputs(), check_trace=False)
    compare(stock, traced)
    for _ in range(8):  # the graph has dropped the folded weights
        compare(stock, model)
    assert runs(model)


@BOTH
def test_a_functional_call_with_other_parameters(frozen: bool) -> None:
    stock, model = replaying(frozen)
    other = {name: p.detach() * 0.5 for name, p in model.named_parameters()}
    with torch.no_grad():
        x = inputs()
        for _ in range(3):
            results = [torch.func.functional_call(m, other, (x,)) for m in (model, stock)]
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
            compare(stock, model)


@BOTH
def test_in_training_and_back(frozen: bool) -> None:
    stock, model = replaying(frozen)
    for _ in range(2):
        x = inputs()
        for m in (stock, model):
            m.train()
            optimizer = torch.optim.SGD(m.parameters(), 0.01)
            m(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            m.eval()
        for _ in range(4):
            compare(stock, model)


@BOTH
def test_copies_and_pickles_make_plans_of_their_own(frozen: bool) -> None:
    stock, model = replaying(frozen)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)):
        for _ in range(10):
            compare(stock, other)
        compare(stock, model)


class Written(nn.Module):
    """Writes over what it has made, as activations do with inplace=True, and +=."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16)
        self.act = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=LAST)  # itself
        kept = self.act(self.norm(self.first(x)))
        made = F.leaky_relu(self.second(kept), 0.5, inplace=True)
        made += x
        left, right = made.chunk(2, 1)
        left.mul_(3).clamp_(max=2)
        torch.sigmoid_(right)
        return torch.cat((made, made.mean((2, 3), keepdim=True).relu_() + kept), 1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_the_call_made_may_be_written_over(mode: Any) -> None:
    torch.manual_seed(0)
    stock = Written().eval().to(memory_format=LAST)
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    for _ in range(6):
        with mode():
            x = inputs()
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)
    assert plans(model) == 1, kept(model).refused
    assert runs(model)


def test_a_normalisation_over_the_result_of_a_convolution() -> None:
    """Weights too large to be folded for one image: opswap's kernel writes over what torch's convolution returns."""
    torch.manual_seed(0)
    layers = nn.Conv2d(512, 512, 3, padding=1, bias=False), nn.BatchNorm2d(512), nn.ReLU()
    stock = nn.Sequential(*layers).eval().to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock))
    for _ in range(5):
        compare(stock, model, torch.randn(1, 512, 4, 4).contiguous(memory_format=LAST))
    assert plans(model) == 1, kept(model).refused


def test_a_parameter_without_memory() -> None:
    """It is not recorded, and no error says so."""
    torch.manual_seed(0)
    stock = Written().eval().to(memory_format=LAST)
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    model.unread = nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)
    for _ in range(6):
        compare(stock, model)
    assert plans(model) == 0


@pytest.mark.parametrize("part", ["input", "part of the input", "buffer"])
def test_what_the_call_did_not_make_is_not_written_over(part: str) -> None:
    class Writing(Written):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1, 16, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            written = {"input": x, "part of the input": x[:, :8], "buffer": self.seen}[part]
            written.add_(1)
            return super().forward(x)[:, :16] + self.seen

    torch.manual_seed(0)
    stock = Writing().eval().to(memory_format=LAST)
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    with torch.no_grad():
        for _ in range(6):
            x = inputs()
            y = x.clone()
            torch.testing.assert_close(model(x), stock(y), rtol=1e-4, atol=1e-4)
            assert torch.equal(x, y)
    assert plans(model) == 0


@BOTH
def test_unfreeze_and_unswap(frozen: bool) -> None:
    stock, model = replaying(frozen)
    opswap.unfreeze(model)
    assert FROZEN not in vars(model)
    compare(stock, model)
    opswap.freeze(model)
    for _ in range(4):
        compare(stock, model)
    assert runs(model)
    opswap.unswap(model)
    compare(stock, model)
    opswap.swap(model)
    for _ in range(8):
        compare(stock, model)


@BOTH
def test_nothing_is_kept_alive(frozen: bool) -> None:
    assert_freed_at_once(lambda: replaying(frozen)[1])


@BOTH
def test_in_many_threads(frozen: bool) -> None:
    stock, model = replaying(frozen)

    def call(seed: int) -> None:
        x = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(seed)).contiguous(
            memory_format=LAST
        )
        for _ in range(20):
            compare(stock, model, x[: 1 + seed % 2])

    at_once(*(partial(call, i) for i in range(4)))


@BOTH
def test_a_model_that_changes_all_the_time(frozen: bool) -> None:
    """It is recorded ever more seldom."""
    stock, model = replaying(frozen)
    for i in range(60):
        stock.slope = model.slope = 0.1 + i
        compare(stock, model)
        compare(stock, model)
    assert 8 <= kept(model).due < 200
    assert "original forward" in kept(model).refused  # the slope is part of the new one
    stock.slope = model.slope = 0.5
    for _ in range(kept(model).due + 70):  # then a plan runs often enough to have been worth it
        compare(stock, model)
    assert runs(model)
    stock.branch[1].eps = model.branch[1].eps = 0.1
    for _ in range(6):
        compare(stock, model)
    assert runs(model)
