# SPDX-License-Identifier: MIT
"""verify shows that a swapped model computes the same, and catches one that does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.swap import Rule, VerificationError
from opswap.swap.in_double import InDouble
from opswap.swap.nearness import difference, same, spread
from opswap.swap.rules import DEFAULT, Replacement
from opswap.swap.verify import _moved, _moved_model
from spellings import Joined, Shuffle, Split, Wrapped, by_size
from spellings.blocks import ToolboxUnit


def images() -> tuple[Tensor]:
    return (torch.randn(2, 12, 4, 8),)


def wrong(result: str) -> list[Rule]:
    """The rule for plain shuffles with another result."""
    (rule,) = [r for r in DEFAULT if r.name == "channel_shuffle" and r.example is not None]

    def prove(region: object, shapes: object) -> Replacement:
        found = rule.prove(region, shapes)
        return Replacement(found.condition, result, found.names)

    return [replace(rule, prove=prove)]


def test_every_mode_and_format_is_checked() -> None:
    model = nn.Sequential(Split(), Split())
    report = opswap.verify(model, images())
    assert [c.name for c in report.checks] == [
        "train, contiguous",
        "eval, contiguous",
        "inference, contiguous",
        "train, channels_last",
        "eval, channels_last",
        "inference, channels_last",
    ]
    assert all(c.holds for c in report.checks) and report.checks[0].detail == "bit-equal"
    assert len(report.swapped) == 2 and not opswap.report(model).swapped
    assert [c["name"] for c in json.loads(report.to_json())["checks"]] == [c.name for c in report.checks]
    assert "train, contiguous" in str(report)


def test_a_swapped_model_is_compared_with_what_it_was() -> None:
    model = opswap.swap(nn.Sequential(Split(), Split()))
    report = opswap.verify(model, images())
    assert report.swapped == opswap.report(model).swapped and len(report.checks) == 6
    assert opswap.report(model).swapped


@pytest.mark.parametrize(
    "result",
    [
        "channel_shuffle(x0, 2, inverse=True)",
        "channel_shuffle(x0, 2) * 1.0001",
        "channel_shuffle(x0, 2).detach()",
        "channel_shuffle(x0, 2).double()",
        "channel_shuffle(x0, 2)[:1]",
        "channel_shuffle(x0, 2) / 0",
        "undefined(x0)",
    ],
)
def test_a_wrong_replacement_is_caught(result: str) -> None:
    with pytest.raises(VerificationError, match="FAILS"):
        opswap.verify(Wrapped(by_size), images(), rules=wrong(result))


def test_what_is_wrong_without_a_graph_only_is_caught() -> None:
    result = "channel_shuffle(x0, 2) + (not x0.requires_grad)"
    with pytest.raises(VerificationError) as error:
        opswap.verify(Wrapped(by_size), images(), rules=wrong(result))
    failed = [line for line in str(error.value).splitlines() if "FAILS" in line]
    assert len(failed) == 2 and all("inference" in line for line in failed)


def test_an_error_of_rounding_size_holds() -> None:
    report = opswap.verify(Wrapped(by_size), images(), rules=wrong("channel_shuffle(x0, 2) * (1 + 2e-7)"))
    first = report.checks[0]
    assert first.holds and first.error is not None and first.bound is not None and first.error < 1e-5


class Positions(nn.Module):
    """Adds positions that are in float32 whatever the model is, as mmpretrain's EdgeNeXt does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[-1], dtype=torch.float32).cumsum(0, dtype=torch.float32)
        scaled = places / torch.tensor([3.0], dtype=torch.float32).float()
        return by_size(x * self.conv(scaled.sin().expand(1, 12, x.shape[2], -1)))


def test_a_model_that_names_float32() -> None:
    with pytest.raises(RuntimeError, match="double"):
        Positions().double()(*(x.double() for x in images()))
    report = opswap.verify(Positions(), images(), rules=wrong("channel_shuffle(x0, 2) * (1 + 2e-7)"))
    first = report.checks[0]
    assert first.holds and first.error is not None and 0 < first.error < 1e-5
    for result in ("channel_shuffle(x0, 2) * 1.0001", "channel_shuffle(x0, 2).detach()"):
        with pytest.raises(VerificationError, match="FAILS"):
            opswap.verify(Positions(), images(), rules=wrong(result))


def test_all_in_double() -> None:
    x = torch.randn(3, dtype=torch.float64)
    with InDouble(torch.float32, widens=True):
        assert (
            x.float().dtype is x.half().dtype is torch.ones(2).dtype is torch.randn(2).dtype is torch.float64
        )
        assert torch.tensor([1.5], dtype=torch.bfloat16).dtype is torch.float64
        assert torch.arange(3).dtype is torch.int64 and (x > 0).dtype is torch.bool
        assert torch.zeros(2, dtype=torch.complex64).dtype is torch.complex128
        given = torch.ones(3, dtype=torch.float64)
        assert given.add_(x) is given
    narrow = torch.ones(3)
    with InDouble(torch.float32, widens=True):
        assert narrow.mul_(x) is narrow and (narrow * 2).dtype is torch.float64
    assert torch.equal(narrow, x.float()) and narrow.dtype is torch.float32


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: torch.rand(x.shape, dtype=x.dtype),
    "randn": lambda x: torch.randn(x.shape, dtype=x.dtype),
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x, memory_format=torch.contiguous_format),
    "normal": lambda x: torch.normal(x, 2.0),
    "normal of a size": lambda x: torch.normal(1.0, 2.0, x.shape, dtype=x.dtype),
    "dropout": lambda x: F.dropout(x, 0.3),
    "bernoulli_": lambda x: x.new_empty(x.shape).bernoulli_(0.7),
    "bernoulli_ of a tensor": lambda x: x.new_empty(x.shape).bernoulli_(x.sigmoid()),
    "uniform_": lambda x: x.new_empty(x.shape).uniform_(-1, 3),
    "exponential_": lambda x: x.new_empty(x.shape).exponential_(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", DRAWS)
def test_draws_in_double(kind: str, dtype: torch.dtype) -> None:
    """They are those of the narrower dtype, but for roundings."""
    x = torch.randn(40).to(dtype)
    torch.manual_seed(3)
    drawn = DRAWS[kind](x)
    for widens in (False, True):
        torch.manual_seed(3)
        with InDouble(dtype, widens=widens):
            y = DRAWS[kind](x.double())
        assert y.dtype is torch.float64
        torch.testing.assert_close(y.to(dtype), drawn)


class DropPath(nn.Module):
    """As mmpretrain writes it: torch draws other numbers in float64."""

    def forward(self, x: Tensor) -> Tensor:
        kept = (0.5 + torch.rand((x.shape[0], 1, 1, 1), dtype=x.dtype)).floor()
        return x * kept


def test_random_numbers_of_the_dtype() -> None:
    """The other masks of float64 would be far from the outputs, and any error near by comparison."""
    model, x = nn.Sequential(DropPath(), Wrapped(by_size)), (torch.randn(16, 12, 4, 8),)
    report = opswap.verify(model, x, rules=wrong("channel_shuffle(x0, 2) * (1 + 2e-7)"))
    assert all(c.holds and c.error is not None and c.error < 1e-5 for c in report.checks)
    with pytest.raises(VerificationError, match="FAILS"):
        opswap.verify(model, x, rules=wrong("channel_shuffle(x0, 2) * 1.001"))


class Steps(nn.Module):
    """Has a kink at 1."""

    def forward(self, x: Tensor) -> Tensor:
        y = by_size(x)
        return y * (y > 1)


def test_a_kink_that_rounding_crosses_holds() -> None:
    x = torch.full((2, 12, 4, 8), 0.5)
    x[0, 0, 0, 0] = 1.0
    report = opswap.verify(nn.Sequential(Steps()), (x,), rules=wrong("channel_shuffle(x0, 2) * (1 + 2e-7)"))
    assert all(c.holds for c in report.checks) and report.checks[0].error is not None
    with pytest.raises(VerificationError):
        opswap.verify(nn.Sequential(Steps()), (x,), rules=wrong("channel_shuffle(x0, 2) + 0.6"))


class Faded(nn.Module):
    """Has a kink at 1, where inputs change less than rounding does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 12, 4, 8), 1.5))
        self.weight.data[0, 0, 0, 0] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(by_size(self.weight - 1e-12 * x.abs()) - 1)


def test_a_kink_that_inputs_do_not_reach_holds() -> None:
    model = nn.Sequential(Faded())
    report = opswap.verify(model, images(), rules=wrong("channel_shuffle(x0, 2) * (1 + 2e-7)"))
    assert all(c.holds for c in report.checks) and report.checks[0].error is not None
    for result in (
        "channel_shuffle(x0, 2) * (1 + 1e-5)",
        "channel_shuffle(x0 + 1e-4 * (x0 - x0.detach()), 2)",
    ):
        with pytest.raises(VerificationError):
            opswap.verify(model, images(), rules=wrong(result))


def test_models_of_the_rounds() -> None:
    """Other parameters in each, on copies: shared ones are moved once, those of equal values stay."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.PReLU(), nn.LazyConv2d(4, 3))
    model.append(model[0]).register_parameter("none", nn.Parameter(torch.empty(0, 3)))
    before = copy.deepcopy(model[:3].state_dict())
    assert _moved_model(model, 0) is model
    for n in range(1, 4):
        moved = _moved_model(model, n)
        weight = moved[0].weight
        assert weight is moved[4].weight and weight.requires_grad and weight is not model[0].weight
        assert same(weight, _moved(model[0].weight, n)) and not same(weight, model[0].weight)
        assert all(same(v, before[k]) for k, v in moved[:3].state_dict().items() if not k.startswith("0."))
    assert all(same(v, before[k]) for k, v in model[:3].state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_inputs_of_the_rounds(dtype: torch.dtype) -> None:
    """Other values in each, smaller by little; equal ones, zeros, infinities and strides stay."""
    x = torch.rand(2, 3, 4, 5).to(dtype).contiguous(memory_format=torch.channels_last)
    x[0, 0, 0] = torch.tensor([0.0, 0.5, 1.0, float("inf"), float("nan")], dtype=dtype)
    x[1, 1, 1] = x[0, 0, 0]
    rounds = [_moved(x, n) for n in range(4)]
    assert rounds[0] is x
    for before, moved in pairwise(rounds):
        assert moved.dtype == dtype and moved.stride() == x.stride() and same(moved[0, 0, 0], moved[1, 1, 1])
        assert moved[0, 0, 0, 0] == 0 and moved[0, 0, 0, 3] == float("inf") and moved[0, 0, 0, 4].isnan()
        inner = slice(2, None)
        assert ((moved[:, inner] <= x[:, inner]) & (moved[:, inner] >= x[:, inner] * 0.93)).all()
        assert (moved != before).float().mean() > 0.5 and moved[0, 0, 0, 2] < 1
    assert _moved(torch.arange(3), 1).equal(torch.arange(3))


def test_zeros_and_ties_are_not_moved_away() -> None:
    x = torch.randint(-1, 2, (2, 12, 4, 8)).float()
    with pytest.raises(VerificationError):
        opswap.verify(
            Wrapped(by_size).requires_grad_(False), (x,), rules=wrong("channel_shuffle(x0, 2) + 1e-3")
        )
    with pytest.raises(VerificationError):
        opswap.verify(nn.Sequential(Shuffle(2)), (x,), rules=wrong("channel_shuffle(x0, 2) * (x0 != 0)"))


class Far(nn.Module):
    """Normalises channels whose mean is far from zero, after a shuffle that loses channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Split()
        self.bn = nn.BatchNorm2d(12)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.block(x) + 30)


@pytest.mark.usefixtures("every_rule_applies")
def test_torch_rounds_more_in_the_format_that_swap_keeps() -> None:
    """The bound is the stock model's error in that same format, which it would lose by itself."""
    report = opswap.verify(Far(), (torch.randn(8, 12, 32, 32),), exact=True)
    assert report.checks[0].detail == "bit-equal"
    (last,) = (c for c in report.checks if c.name == "train, channels_last")
    assert last.error is not None and last.bound > 100 * torch.finfo(torch.float32).eps


class Contiguous(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).view(x.shape)


class Refuses(nn.Module):
    """Needs contiguous images."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1).relu()


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("last", [nn.MaxPool3d((1, 3, 3), (2, 1, 1)), Refuses()], ids=["pool", "own"])
def test_layers_that_refuse_the_format(last: nn.Module) -> None:
    """The stock model runs in channels_last, because it loses the format before them."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), Contiguous(), last)
    report = opswap.verify(model, (torch.randn(4, 3, 12, 12),))
    (check,) = (c for c in report.checks if c.name == "train, channels_last")
    assert check.error is not None


def test_a_model_whose_train_returns_nothing() -> None:
    model = nn.Sequential(ToolboxUnit(), ToolboxUnit())
    report = opswap.verify(model[0], images(), example_inputs=images())
    assert len(report.swapped) >= 1 and all(c.holds for c in report.checks)


def test_a_failing_check_leaves_the_model_unswapped() -> None:
    model = Wrapped(by_size)
    with pytest.raises(VerificationError):
        opswap.swap(model, rules=wrong("channel_shuffle(x0, 3)"), verify_with=images())
    assert type(model) is Wrapped and not opswap.report(model).swapped
    opswap.swap(model, verify_with=images())
    assert opswap.report(model).swapped


def test_nothing_is_changed() -> None:
    model = nn.Sequential(Joined(by_size), nn.BatchNorm2d(12), nn.Dropout())
    state = copy.deepcopy(model.state_dict())
    (x,) = images()
    before = x.clone()
    generator = torch.get_rng_state()
    opswap.verify(model, (x,))
    assert torch.equal(x, before) and not x.requires_grad and model.training
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), state.values(), strict=True))
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("inputs_too", [True, False])
def test_within_inference_mode_training_is_checked_too(inputs_too: bool) -> None:
    model, x = nn.Sequential(nn.Conv2d(12, 12, 3), nn.BatchNorm2d(12), nn.ReLU()), images()
    with torch.inference_mode():
        report = opswap.verify(model, images() if inputs_too else x)
        opswap.swap(model, verify_with=x)
    assert len(report.checks) == 6 and report.swapped
    assert not any("raise" in c.detail for c in report.checks)


def test_a_format_that_only_the_swapped_model_runs_in_is_named() -> None:
    report = opswap.verify(nn.Sequential(nn.MaxPool3d((1, 3, 3), (2, 1, 2))), (torch.randn(2, 4, 9, 9),))
    assert report.checks[3].holds and "runs; the original model raises" in report.checks[3].detail


def test_a_model_that_fails_either_way_holds() -> None:
    report = opswap.verify(nn.Sequential(Wrapped(by_size)), (torch.randn(2, 5, 4, 8),))
    assert all(c.holds and "both raise" in c.detail for c in report.checks)


def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match="inputs must be a tuple, got Tensor"):
        opswap.verify(Wrapped(by_size), *images())
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module, got int"):
        opswap.verify(3, images())


@pytest.mark.parametrize(("error", "holds"), [(1e-6, True), (1e-3, False)])
def test_a_running_mean_of_rounding_errors(error: float, holds: bool) -> None:
    """A mean may be 0 but for rounding, of any size: its errors are compared with the deviation of what it averages."""
    truth = {
        "bn.running_mean": torch.zeros(3),
        "bn.running_var": torch.full((3,), 4.0),
        "weight": torch.zeros(3),
    }
    for name in ("bn.running_mean", "weight"):
        ours, stock = torch.full((3,), error), torch.full((3,), error / 20)
        found = difference(name, ours, [stock], truth[name], spread(name, truth))
        assert (found.share <= 1) == (holds and name != "weight")
