# SPDX-License-Identifier: MIT
"""Rule dropout_add: dropout of whole channels and the addition behind it, in one pass over memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.swap.rules import DEFAULT, dropout_add
from step import outputs_and_gradients

RULE = "dropout_add"
RULES = [r for r in DEFAULT if r.name == RULE]
Forward = Callable[[Any, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs of a test are replaced too."""
    monkeypatch.setattr(dropout_add, "_FEWEST", 1)
    monkeypatch.setattr(dropout_add, "_FEWEST_HALF", 1)


class Residual(nn.Module):
    """The function joins what a dropout gives with another tensor."""

    def __init__(self, joined: Forward, drop: nn.Module | None = None) -> None:
        super().__init__()
        self.drop = nn.Dropout2d(0.3) if drop is None else drop
        self.joined, self.act = joined, nn.Softplus()

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(self, F.softplus(x), x)


def added_in_place(model: Any, y: Tensor, x: Tensor) -> Tensor:
    y = model.drop(y)
    y += x
    return y


SPELLINGS: dict[str, Forward] = {
    "x behind": lambda m, y, x: m.drop(y) + x,
    "x before": lambda m, y, x: x + m.drop(y),
    "its own input": lambda m, y, x: m.drop(y) + y,
    "torch.add": lambda m, y, x: torch.add(x, m.drop(y)),
    "method": lambda m, y, x: m.drop(y).add(x),
    "in place": added_in_place,
    "method in place": lambda m, y, x: m.drop(y).add_(x),
    "function": lambda m, y, x: F.dropout2d(y, 0.3, m.training) + x,
    "function, by name": lambda m, y, x: x + F.dropout2d(input=y, p=0.3, training=m.training),
    "read later": lambda m, y, x: F.relu(m.drop(y) + x) * y,
}


def swapped(stock: nn.Module, rules: Any = RULES, strict: bool = True) -> nn.Module:
    return opswap.swap(copy.deepcopy(stock), rules=rules, strict=strict)


def step(model: nn.Module, x: Tensor) -> Any:
    torch.manual_seed(7)
    found = outputs_and_gradients(model, x)
    return found, torch.rand(4)


def assert_near(ours: Any, theirs: Any) -> None:
    """One rounding of a sum in place of two; the same channels, and the generator where it was."""
    (a, drawn), (b, expected) = ours, theirs
    for x, y in zip(a, b, strict=True):
        eps = torch.finfo(x.dtype).eps
        torch.testing.assert_close(x, y, rtol=4 * eps, atol=4 * eps * float(y.abs().max()))
    assert torch.equal(drawn, expected)


def ran(model: nn.Module, x: Tensor) -> bool:
    (outcome,) = (o for o in opswap.explain(model, x).outcomes if o.rule == RULE)
    return outcome.ran == 1


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", SPELLINGS)
def test_same_channels_and_sums(name: str, memory_format: torch.memory_format) -> None:
    stock = Residual(SPELLINGS[name])
    model = swapped(stock)
    assert [(s.rule, s.exact) for s in opswap.report(model).swapped] == [(RULE, False)]
    x = torch.randn(2, 6, 5, 7).contiguous(memory_format=memory_format)
    assert_near(step(model, x), step(stock, x))
    assert ran(model, x) and model(x).stride() == stock(x).stride()
    assert_near(step(model.eval(), x), step(stock.eval(), x))
    assert not ran(model, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("drop", "shape"),
    [(nn.Dropout1d(0.2), (2, 6, 9)), (nn.Dropout2d(0.2), (2, 6, 5, 7)), (nn.Dropout3d(0.2), (2, 6, 3, 2, 4))],
)
def test_dimensions_and_dtypes(drop: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    stock = Residual(SPELLINGS["x behind"], drop)
    model, x = swapped(stock), torch.randn(shape, dtype=dtype)
    assert ran(model, x)
    assert_near(step(model, x), step(stock, x))


def test_gradients_are_bit_equal() -> None:
    stock = Residual(SPELLINGS["its own input"])
    model, x = swapped(stock), torch.randn(3, 8, 4, 4, requires_grad=True)
    gradients = []
    for m in (stock, model):
        torch.manual_seed(1)
        gradients += torch.autograd.grad(m(x).sum(), x)
    assert torch.equal(*gradients)


def changed(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.drop, name, value)


@pytest.mark.parametrize(
    "change",
    [
        changed("p", 0.0),
        changed("p", 1.0),
        changed("inplace", True),
        changed("training", False),
        lambda m: m.drop.register_forward_hook(lambda module, args, result: 2 * result),
    ],
)
def test_what_a_user_changes_later(change: Callable[[Any], None]) -> None:
    stock = Residual(SPELLINGS["x behind"])
    model, x = swapped(stock), torch.randn(2, 6, 5, 7)
    assert ran(model, x)
    for m in (stock, model):
        change(m)
    assert not ran(model, x)
    assert_near(step(model, x), step(stock, x))


def test_a_changed_probability_is_read() -> None:
    stock = Residual(SPELLINGS["x behind"])
    model, x = swapped(stock), torch.randn(2, 6, 5, 7)
    stock.drop.p = model.drop.p = 0.8
    assert ran(model, x)
    assert_near(step(model, x), step(stock, x))


def test_another_random_number_in_between() -> None:
    def joined(model: Any, y: Tensor, x: Tensor) -> Tensor:
        y = model.drop(y)
        return y + F.dropout(x, 0.5, model.training)

    def acted(model: Any, y: Tensor, x: Tensor) -> Tensor:
        y = model.drop(y)
        return y + model.act(x)

    def written(model: Any, y: Tensor, x: Tensor) -> Tensor:
        z = model.drop(y)
        y.mul_(2)
        return z + x

    for forward in (joined, acted, written):
        stock = Residual(forward)
        model = swapped(stock, strict=False)
        (kept,) = (s for s in opswap.report(model).kept if s.rule == RULE)
        assert "runs between the dropout and the addition" in kept.reason
        x = torch.randn(2, 6, 5, 7)
        assert_near(step(model, x), step(stock, x))


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, y, x: m.drop(y) * m.drop(x),
        lambda m, y, x: torch.add(m.drop(y), x, alpha=2),
        lambda m, y, x: m.drop(y) + 1,
        lambda m, y, x: x.clone().add_(m.drop(y)),
        lambda m, y, x: (lambda z: z + x + z)(m.drop(y)),
        lambda m, y, x: (lambda z: z + z)(m.drop(y)),
        lambda m, y, x: F.dropout2d(y, 0.3, False) + x,
        lambda m, y, x: F.dropout(y, 0.3, m.training) + x,
    ],
)
def test_other_code_is_left_alone(forward: Forward) -> None:
    stock = Residual(forward)
    model, x = swapped(stock, strict=False), torch.randn(2, 6, 5, 7)
    assert not opswap.report(model).swapped
    assert_near(step(model, x), step(stock, x))


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (
            (torch.randn(2, 6, 5, 7), torch.randn(6, 1, 1)),
            "it adds float32 (2, 6, 5, 7) and float32 (6, 1, 1)",
        ),
        ((torch.randn(2, 6, 5, 7), torch.randn(2, 6, 5, 7).double()), "float64"),
        ((torch.randn(2, 6, 5, 7), torch.randn(7, 5, 6, 2).permute(3, 2, 1, 0)), "it adds"),
        ((torch.randn(6, 5, 7), torch.randn(6, 5, 7)), "it adds"),
    ],
)
@pytest.mark.filterwarnings("ignore:dropout2d")
def test_other_inputs_run_torch(inputs: tuple[Tensor, Tensor], reason: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout2d(0.3)

        def forward(self, y: Tensor, x: Tensor) -> Tensor:
            z: Tensor = self.drop(y) + x
            return z

    model = swapped(Two())
    (outcome,) = opswap.explain(model, *inputs).outcomes
    assert not outcome.ran and reason in outcome.reason
    torch.manual_seed(3)
    expected = Two()(*inputs)
    torch.manual_seed(3)
    assert torch.equal(model(*inputs), expected)


def test_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = swapped(Residual(SPELLINGS["x behind"]))
    (outcome,) = opswap.explain(model, torch.randn(2, 6, 5, 7)).outcomes
    assert not outcome.ran and "524288 elements" in outcome.reason


def test_transforms() -> None:
    """Under vmap, functional derivatives and torch.compile torch's own code runs."""
    stock = Residual(SPELLINGS["x behind"])
    model, x = swapped(stock), torch.randn(3, 2, 6, 5, 7)
    results = []
    for m in (stock, model):
        for randomness in ("same", "different"):
            torch.manual_seed(5)
            results.append(torch.func.vmap(m, randomness=randomness)(x))
        torch.manual_seed(5)
        results.append(torch.func.grad(lambda v, m=m: m(v).square().sum())(x[0]))
        torch.manual_seed(5)
        results.append(torch.compile(m, backend="aot_eager", fullgraph=True)(x[0]))
    for a, b in zip(results[:4], results[4:], strict=True):
        torch.testing.assert_close(a, b)
    twice = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)

    def seeded(v: Tensor) -> Tensor:
        torch.manual_seed(2)
        y: Tensor = model(v)
        return y

    assert ran(model, twice)
    assert torch.autograd.gradcheck(seeded, twice) and torch.autograd.gradgradcheck(seeded, twice)


def test_a_joined_dropout_is_reported_once() -> None:
    """One without an addition is still listed, with the reason why it is torch's."""
    stock = Residual(SPELLINGS["x behind"])
    assert not opswap.report(opswap.swap(copy.deepcopy(stock), exact=True)).swapped
    joined = opswap.report(opswap.swap(stock))
    assert [(s.path, s.rule) for s in joined.swapped] == [("", RULE)]
    assert "drop" not in [s.path for s in joined.kept]
    alone = opswap.report(opswap.swap(Residual(lambda m, y, x: m.drop(y) * x)))
    assert next(s.reason for s in alone.kept if s.path == "drop").startswith("torch is as fast")
