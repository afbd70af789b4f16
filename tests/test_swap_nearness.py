# SPDX-License-Identifier: MIT
"""verify holds where only roundings differ, and fails where more does."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap import VerificationError
from opswap.swap.nearness import Difference, Score, Terms, difference
from opswap.swap.rules import DEFAULT


def short_convolutions(channels: int) -> nn.Sequential:
    """As in GhostNetV2, whose last maps are one pixel at small images: BatchNorms over the two images of a batch."""
    across, down = ({"kernel_size": (1, 5), "padding": (0, 2)}, {"kernel_size": (5, 1), "padding": (2, 0)})
    return nn.Sequential(
        nn.Conv2d(16, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
        nn.Conv2d(channels, channels, groups=channels, bias=False, **across),
        nn.BatchNorm2d(channels),
        nn.Conv2d(channels, channels, groups=channels, bias=False, **down),
        nn.BatchNorm2d(channels),
    )


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("seed", range(3))
def test_batch_norms_over_two_values(seed: int) -> None:
    """The gradient of the first bias is exactly 0 in stock, in float32 too: its two terms are opposite."""
    torch.manual_seed(seed)
    report = opswap.verify(short_convolutions(960).train(), (torch.randn(2, 16, 1, 1),))
    assert any(site.rule == "batch_norm" for site in report.swapped)
    assert any(check.error is not None for check in report.checks)


class _Tilted(torch.autograd.Function):
    """The identity, whose gradient is wrong by one part in a thousand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * torch.linspace(0.999, 1.001, len(gradient)).view(-1, 1, 1, 1)


@pytest.mark.usefixtures("every_rule_applies")
def test_a_wrong_gradient_of_two_values_is_caught() -> None:
    (rule,) = [rule for rule in DEFAULT if rule.name == "batch_norm" and rule.whole]
    names = {**rule.whole.names, "tilted": _Tilted.apply}
    wrong = replace(rule, whole=replace(rule.whole, result="tilted(apply_norm(m0, x0, None))", names=names))
    with pytest.raises(VerificationError, match=r"gradient of \d\.(weight|bias)"):
        opswap.verify(short_convolutions(64).train(), (torch.randn(2, 16, 1, 1),), rules=[wrong])


class Shared(nn.Module):
    """Layers of every kind whose bias is added to each position, one of them called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)
        self.layer, self.linear = nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.norm(self.conv(x)))
        return self.linear(self.layer(y.permute(0, 2, 3, 1)))


def test_terms_of_gradients() -> None:
    """The magnitude of each sum, and the error of stock's terms."""
    torch.manual_seed(0)
    stock, x, terms = Shared(), torch.randn(2, 4, 3, 3), Terms()
    for model in (stock, copy.deepcopy(stock).double()):
        y = model(x.to(model.linear.bias.dtype))
        terms.watch(model, [y])
        y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
    expected = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(-1, 3).norm(dim=0).max().item()
    assert set(terms.magnitude) == {
        f"gradient of {name}" for name, p in stock.named_parameters() if p.dim() == 1
    }
    assert terms.magnitude["gradient of linear.bias"] == pytest.approx(expected)
    assert 0 < terms.error["gradient of norm.bias"] < 1e-5 * terms.magnitude["gradient of norm.bias"]


class Detector(nn.Module):
    """Keeps some of its pixels, the last one by the last bits of a sum: another number in another precision."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.norm(self.conv(x))).movedim(1, -1).flatten(0, 2)
        bits = features.detach().float().sum().view(torch.int32)
        return self.linear(features[: 20 + int(bits % 16 == 0)])


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_results_may_depend_on_rounding(seed: int) -> None:
    torch.manual_seed(seed)
    report = opswap.verify(Detector().train(), (torch.randn(2, 3, 5, 5),))
    assert report.swapped and all(check.holds for check in report.checks)


def test_what_is_reported_held() -> None:
    """Of a quantity that was lost at last, and holds since stock was worse in another round."""
    lost = difference("a", torch.ones(2), [torch.ones(3)], torch.ones(3).double())
    score = Score([lost])
    score.add([Difference("a", 0.0, 1e-6, float("inf"), allowed=float("inf"))])
    while score.open:
        score.add([lost])
    assert score.failed is None and score.worst.error == 1e-6 and not score.worst.problem


def test_terms_of_another_number_of_rows() -> None:
    linear, terms = nn.Linear(3, 2), Terms()
    for model, rows in ((linear, 5), (copy.deepcopy(linear).double(), 4)):
        y = model(torch.randn(rows, 3, dtype=model.bias.dtype))
        terms.watch(model, [y])
        y.sum().backward()
    assert terms.magnitude == {"gradient of bias": 2.0} and terms.error == {"gradient of bias": 0.0}


def test_errors_of_sums_are_compared_with_their_terms() -> None:
    zero, error = torch.zeros(3), torch.full((3,), 1e-6)
    assert difference("bias", error, [zero], zero.double()).share > 1
    assert difference("bias", error, [zero], zero.double(), magnitude=1.0).share < 1
    assert difference("bias", error * 10, [zero], zero.double(), magnitude=1.0).share > 1
    assert difference("bias", error * 10, [zero], zero.double(), 1.0, error_of_terms=1e-5).share < 1


def rounds(chance: float, generator: random.Random) -> Iterator[list[Difference]]:
    while True:
        yield [Difference("a", 2.0 if generator.random() < chance else 0.5)]


@pytest.mark.parametrize(("chance", "holds"), [(0.0, 1.0), (0.25, 0.99), (1.0, 0.0)])
def test_what_is_lost_by_chance_holds(chance: float, holds: float) -> None:
    generator, held = random.Random(0), 0
    for _ in range(1000):
        draws = rounds(chance, generator)
        score = Score(next(draws))
        while score.open:
            score.add(next(draws))
        held += score.failed is None
    assert held >= 1000 * holds if holds else not held


def flips(ours: float, stock: float, least: float, generator: random.Random) -> Iterator[list[Difference]]:
    """An error of 1e-2 with these chances, besides `least` in ours and 1e-6 in stock."""
    while True:
        error = least + 1e-2 * (generator.random() < ours)
        bound = 1e-6 + 1e-2 * (generator.random() < stock)
        yield [Difference("a", error / (4 * bound), error, bound, allowed=4 * bound)]


@pytest.mark.parametrize(
    ("ours", "stock", "least", "least_held", "most_held"),
    [
        (0.8, 0.4, 1e-6, 0.98, 1.0),
        (0.95, 0.0, 1e-6, 0.0, 0.1),
        (1.0, 0.1, 1e-6, 0.0, 0.2),
        (0.5, 0.02, 1e-4, 0.0, 0.1),
    ],
)
def test_what_is_lost_in_most_rounds(
    ours: float, stock: float, least: float, least_held: float, most_held: float
) -> None:
    """Values at kinks hold; what stock never meets, and an error in each round, do not but for a lucky first round."""
    generator, held = random.Random(0), 0
    for _ in range(500):
        draws = flips(ours, stock, least, generator)
        score = Score(next(draws))
        while score.open:
            score.add(next(draws))
        held += score.failed is None
    assert 500 * least_held <= held <= 500 * most_held


def test_each_quantity_has_its_own_score() -> None:
    """Another one is lost in each round, and all hold."""
    names = [f"{i}" for i in range(20)]
    lost = [[Difference(n, 2.0 if i == turn else 0.5) for i, n in enumerate(names)] for turn in range(20)]
    score = Score([Difference(n, 2.0) for n in names])
    turns = iter(lost)
    while score.open:
        score.add(next(turns))
    assert score.failed is None and score.worst.share == 0.5


@pytest.mark.parametrize("ours", [torch.ones(3).bfloat16(), torch.ones(3, 1)], ids=["dtype", "dimensions"])
def test_what_no_round_changes_fails_at_once(ours: Tensor) -> None:
    score = Score([difference("a", ours, [torch.ones(3)], torch.ones(3).double())])
    assert not score.open and score.failed is not None and score.failed.problem.startswith("a is ")


@pytest.mark.parametrize("lost", [1, 3, 8])
def test_another_shape_fails_in_each_round(lost: int) -> None:
    """As the number of boxes that a detector finds, which changes with rounding. That of float64 is never wrong."""
    other = difference("a", torch.ones(2), [torch.ones(3)], torch.ones(3).double())
    assert other.problem == "a is float32(2,), was float32(3,)"
    assert difference("a", torch.ones(3), [torch.ones(2)], torch.ones(3).double()).share == 0.0
    assert difference("a", torch.ones(3), [torch.ones(3)], torch.ones(2).double()).share == float("inf")
    score = Score([other])
    rounds = 1
    while score.open:
        score.add([other if rounds < lost else Difference("a", 0.5)])
        rounds += 1
    assert (score.failed is other) == (lost == 8) and rounds == (8 if lost == 8 else 2 * lost + 1)
