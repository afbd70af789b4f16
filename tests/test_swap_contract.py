# SPDX-License-Identifier: MIT
"""What every swapped model keeps, whatever its shuffle is spelled like."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near
from spellings import SPELLINGS, Spelling, Split, Wrapped, by_size
from spellings.blocks import SecondVersionUnit
from step import assert_equal, outputs_and_gradients
from swapping import pair
from threads import at_once, on_threads
from twins import twins


def same_step(spelling: Spelling, model: nn.Module, other: nn.Module) -> None:
    if spelling.strided:
        assert_model_as_near(model, other, lambda: (torch.randn(spelling.shape),))
    else:
        x = torch.randn(spelling.shape)
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(other, x))


@pytest.fixture(params=SPELLINGS, ids=repr)
def spelling(request: pytest.FixtureRequest) -> Iterator[Spelling]:
    with on_threads(1):
        yield request.param


def test_objects_names_and_flags(spelling: Spelling) -> None:
    model = spelling.make()
    model.requires_grad_(False)
    next(model.parameters()).requires_grad_(True)
    next(model.children()).eval()
    tensors = {k: id(t) for k, t in [*model.named_parameters(), *model.named_buffers()]}
    modules = {k: (id(m), m.training) for k, m in model.named_modules()}
    keys, trained = list(model.state_dict()), [p.requires_grad for p in model.parameters()]
    assert opswap.swap(model, strict=True) is model
    assert {k: id(t) for k, t in [*model.named_parameters(), *model.named_buffers()]} == tensors
    assert {k: (id(m), m.training) for k, m in model.named_modules()} == modules
    assert list(model.state_dict()) == keys
    assert [p.requires_grad for p in model.parameters()] == trained


def test_states_of_models_and_optimizers(spelling: Spelling) -> None:
    stock, model = pair(spelling)
    other = spelling.make()
    if {k: v.shape for k, v in other.state_dict().items()} == {
        k: v.shape for k, v in stock.state_dict().items()
    }:
        other.load_state_dict(model.state_dict(), strict=True)
        model.load_state_dict(stock.state_dict(), strict=True)
        same_step(spelling, model, other.train(model.training))
    twins = [torch.optim.SGD(m.parameters(), 0.01, momentum=0.9) for m in (stock, model)]
    x = torch.randn(spelling.shape)
    for m, optimizer in zip((stock, model), twins, strict=True):
        optimizer.zero_grad()
        m(x).square().mean().backward()
        optimizer.step()
    twins[1].load_state_dict(twins[0].state_dict())
    twins[0].load_state_dict(twins[1].state_dict())
    same = assert_equal if not spelling.strided else torch.testing.assert_close
    same(list(stock.parameters()), list(model.parameters()))


def test_copies(spelling: Spelling) -> None:
    stock, model = pair(spelling)
    try:
        pickle.dumps(stock)
    except (AttributeError, pickle.PicklingError):
        copies = (copy.deepcopy(model),)
    else:
        copies = twins(model)
    sites = opswap.report(model).swapped
    for twin in copies:
        assert opswap.report(twin).swapped == sites
        same_step(spelling, twin, model)
    opswap.unswap(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in stock.modules()]
    assert opswap.report(copies[0]).swapped
    same_step(spelling, copies[0], stock)


def test_hooks_of_every_module_fire(spelling: Spelling) -> None:
    stock, model = pair(spelling)
    calls: list[list[str]] = []
    x = torch.randn(spelling.shape)
    for m in (stock, model):
        seen: list[str] = []
        for path, child in m.named_modules():
            child.register_forward_hook(lambda *_, path=path, seen=seen: seen.append(path))
        m(x)
        calls.append(seen)
    assert calls[0] == calls[1]


def test_moving_average_and_tracing(spelling: Spelling) -> None:
    stock, model = pair(spelling)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    x = torch.randn(spelling.shape)
    assert torch.equal(average.eval()(x), model.eval()(x))
    try:
        torch.fx.symbolic_trace(stock)
    except Exception:
        return
    assert torch.equal(torch.fx.symbolic_trace(model)(x), stock.eval()(x))


@pytest.mark.once
@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_export(spelling: Spelling) -> None:
    _, model = pair(spelling)
    x = torch.randn(spelling.shape)
    program = torch.export.export(model.eval(), (x,))
    torch.testing.assert_close(program.module()(x), model(x))


def test_two_models_in_two_threads() -> None:
    stocks = [nn.Sequential(Split(), Split()), nn.Sequential(SecondVersionUnit(12, 2), Wrapped(by_size, 24))]

    def work(stock: nn.Module) -> None:
        for _ in range(5):
            model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
            x = torch.randn(2, 12, 4, 8)
            torch.testing.assert_close(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))

    at_once(*(partial(work, s) for s in stocks))


class Hostile(nn.Module):
    """Does to those who look at it what a module can do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv = nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "exits":
            raise SystemError("no graph")
        if self.kind == "deletes":
            del self.conv
        if self.kind == "stores":
            self.seen = x
        return by_size(self.conv(x))

    def __getattr__(self, name: str) -> object:
        if name == "secret":
            raise RuntimeError("hands off")
        return super().__getattr__(name)


@pytest.mark.parametrize("kind", ["exits", "deletes", "stores"])
def test_hostile_modules_are_reported(kind: str) -> None:
    model = nn.Sequential(Hostile(kind), Wrapped(by_size))
    attributes = [list(vars(m)) for m in model.modules()]
    report = opswap.scan(model, exact=True)
    assert [s.path for s in report.swapped] == ["1"] and [s.path for s in report.kept] == ["0"]
    opswap.swap(model, exact=True)
    opswap.unswap(model)
    assert [list(vars(m)) for m in model.modules()] == attributes
    assert isinstance(model[0].conv, nn.Conv2d)


def test_shufflenet_is_analysed_quickly(record_property: object) -> None:
    """Writes the seconds down; what bounds them is that a module is captured once a mode, not more."""
    model = opswap.models.shufflenet_v2_x1_0()
    begin = time.process_time()
    opswap.swap(model, exact=True, strict=True)
    record_property("seconds", time.process_time() - begin)
    assert len(opswap.report(model).swapped) == 17
