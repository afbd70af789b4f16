# SPDX-License-Identifier: MIT
"""The comparison with float64 fails for errors of code, and passes for those of chance."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nearness import (
    FAIL,
    PASS,
    Quantities,
    assert_as_near,
    assert_model_as_near,
    assert_within_roundings,
    named,
    step,
)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
    )


def images() -> tuple[Tensor]:
    return (torch.randn(2, 3, 8, 8),)


def rounds(change: Callable[[dict[str, Tensor], int], None], kinks: float = 0.0) -> Callable[[], tuple]:
    """Quantities with the noise of float32; either model is far off in one of them with probability `kinks`."""
    count = [0]

    def draw() -> tuple[Quantities, Quantities, Quantities]:
        truth = {name: torch.randn(200, dtype=torch.float64) for name in ("output", "weight", "bias")}
        stock, ours = (
            {k: (t * (1 + 1e-7 * torch.randn(200))).float() for k, t in truth.items()} for _ in "ab"
        )
        for side in (stock, ours):
            if random.random() < kinks:
                side["weight"][:20] += 0.1 * torch.randn(20)
        change(ours, count[0])
        count[0] += 1
        return truth, stock, ours

    draw.count = count
    return draw


def scaled(ours: dict[str, Tensor], number: int) -> None:
    ours["weight"] *= 1 + 1e-3


def biased(ours: dict[str, Tensor], number: int) -> None:
    ours["bias"] += 1e-3


def one_value(ours: dict[str, Tensor], number: int) -> None:
    ours["output"][7] *= 1 + 1e-3


@pytest.mark.parametrize("change", [scaled, biased, one_value], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kinks", [0.0, 0.1])
def test_planted_errors_fail(change: Callable[[dict[str, Tensor], int], None], kinks: float) -> None:
    name = {"scaled": "weight", "biased": "bias", "one_value": "output"}[change.__name__]
    failures = 0
    for _ in range(20):
        try:
            assert_as_near(rounds(change, kinks))
        except AssertionError as error:
            assert name in str(error) and "farther from float64" in str(error)
            failures += 1
    assert failures == 20 if not kinks else failures >= 16


@pytest.mark.parametrize("kinks", [0.0, 0.1, 0.5, 0.9])
def test_noise_and_kinks_pass(kinks: float) -> None:
    for _ in range(20):
        assert_as_near(rounds(lambda ours, number: None, kinks))


def test_an_error_in_a_single_round_passes() -> None:
    draw = rounds(lambda ours, number: scaled(ours, number) if number == 0 else None)
    assert_as_near(draw)
    assert draw.count[0] == -PASS + 2
    draw = rounds(lambda ours, number: None)
    assert_as_near(draw)
    assert draw.count[0] == -PASS


def test_an_error_that_every_round_has_fails_after_as_few_rounds_as_possible() -> None:
    draw = rounds(scaled)
    with pytest.raises(AssertionError, match="weight: "):
        assert_as_near(draw)
    assert draw.count[0] == FAIL


@pytest.mark.parametrize("training", [True, False])
def test_models(training: bool) -> None:
    """Roundings in another order pass: channels_last, and float64 rounded to float32."""
    stock = network().train(training)
    before = copy.deepcopy(stock.state_dict())
    assert_model_as_near(copy.deepcopy(stock).to(memory_format=torch.channels_last), stock, images)
    assert all(torch.equal(a, b) for a, b in zip(stock.state_dict().values(), before.values(), strict=True))
    assert all(p.grad is None for p in stock.parameters())


class Wrong(nn.Module):
    """A network with something added to its output, its gradients, or its buffers."""

    def __init__(self, stock: nn.Module, kind: str) -> None:
        super().__init__()
        self.net, self.kind = stock, kind

    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        if self.kind == "output":
            return y + 1e-3
        if self.kind == "buffer":
            self.net[1].running_var.data *= 1 + 1e-3
        if self.kind == "count":
            self.net[1].num_batches_tracked.add_(1)
        if self.kind == "gradient":
            weight = self.net[4].weight
            y = torch.cat((y[:1] + 1e-3 * (weight - weight.detach()).sum(), y[1:]))
        return y


KINDS = {
    "output": "output 0",
    "buffer": "net.1.running_var",
    "count": "net.1.num_batches",
    "gradient": "net.4.weight",
}


@pytest.mark.parametrize("kind", KINDS)
def test_planted_errors_of_models_fail(kind: str) -> None:
    stock = network()
    with pytest.raises(AssertionError, match=KINDS[kind]):
        assert_model_as_near(Wrong(copy.deepcopy(stock), kind), Wrong(stock, ""), images)


def test_a_gradient_that_is_missing_fails() -> None:
    stock = network()
    ours = copy.deepcopy(stock)
    ours[0].bias.requires_grad_(False)
    with pytest.raises(AssertionError, match=r"gradient of 0\.bias"):
        assert_model_as_near(ours, stock, images)


def test_other_shapes_dtypes_and_names_fail() -> None:
    x = torch.randn(3)
    for ours in ({"y": x[:2]}, {"y": x.double()}, {"z": x}, {"y": None}, {"y": x / 0}):
        with pytest.raises(AssertionError):
            assert_as_near(lambda ours=ours: ({"y": x.double()}, {"y": x}, ours))


def test_values_that_are_not_finite() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    assert_as_near(lambda: (named([x.double()]), named([x]), named([x.clone()])))
    for i in range(3):
        wrong = x.clone()
        wrong[i] = 3.0
        with pytest.raises(AssertionError):
            assert_as_near(lambda wrong=wrong: (named([x.double()]), named([x]), named([wrong])))


def test_a_step_names_what_it_has_computed() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    found = step(net, torch.randn(4, 3))
    compiled = torch.compile(net, backend="eager")
    assert list(step(compiled, torch.randn(4, 3))) == list(found)
    assert list(found)[:2] == ["output 0", "gradient of input 0"]
    assert {"gradient of 0.weight", "gradient of 1.bias", "1.running_mean"} <= set(found)


def sums(dtype: torch.dtype, terms: int) -> list[Tensor]:
    """Sums of products made in `dtype`, or in float32 for half precision; the truth, the magnitudes, the terms."""
    a, b = (torch.randn(50, terms).to(dtype) for _ in range(2))
    made = torch.float32 if dtype.itemsize == 2 else dtype
    ours = torch.zeros(50, dtype=made)
    for i in range(terms):
        ours += a[:, i].to(made) * b[:, i].to(made)
    products = a.double() * b.double()
    return [ours.to(dtype), products.sum(1), products.abs().sum(1), torch.full((50,), terms)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("terms", [1, 2, 9, 300])
def test_sums_are_within_roundings_unless_something_is_missing(dtype: torch.dtype, terms: int) -> None:
    for _ in range(20):
        ours, *expected = sums(dtype, terms)
        assert_within_roundings(ours, *expected)
    unit = torch.finfo(dtype).eps
    for change in (3e-4, 2 * unit) if dtype.itemsize == 2 else (3e-4,):
        wrong = ours.clone()
        wrong[17] += max(change, 4 * unit) * expected[1][17]
        with pytest.raises(AssertionError, match="sum: element 17 is"):
            assert_within_roundings(wrong, *expected, "sum")
    ours[3] = float("nan")
    with pytest.raises(AssertionError, match="element 3 is nan"):
        assert_within_roundings(ours, *expected)
    with pytest.raises(AssertionError, match=r"ours is \(50,\), the truth \(49,\)"):
        assert_within_roundings(ours, expected[0][1:], *expected[1:])
