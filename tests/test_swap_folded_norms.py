# SPDX-License-Identifier: MIT
"""Convolutions before normalisations that call F.batch_norm, as timm's ConvNormAct, are folded in evaluation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from counted import kernels_of
from nearness import assert_model_as_near
from norm_act import NormAct, convolution
from opswap.swap.rules import DEFAULT
from replay_cases import drawn, kept, plans
from step import assert_equal, outputs_and_gradients

LAST = torch.channels_last
OTHERS = [rule for rule in DEFAULT if rule.name != "conv_folded"]
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies", "fresh_counts"),
]


class ConvNormAct(nn.Module):
    """timm's, of any convolution."""

    def __init__(self, conv: nn.Conv2d, act: Callable[[], nn.Module] = nn.ReLU, **options: Any) -> None:
        super().__init__()
        self.conv, self.bn = conv, NormAct(conv.out_channels, act, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class Stage(nn.Module):
    """timm's Bottleneck of a RegNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            ConvNormAct(convolution(16, 24)),
            ConvNormAct(convolution(24, 24, 3, groups=3)),
        )
        self.conv3 = ConvNormAct(convolution(24, 16), nn.Identity)
        self.act3 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act3(self.conv3(self.conv2(self.conv1(x))) + x)


def row(*options: Any) -> nn.Sequential:
    return nn.Sequential(convolution(16, 24, 3, *options), NormAct(24), nn.AvgPool2d(2), nn.Conv2d(24, 16, 1))


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # and the number of folded convolutions
    "a block": (lambda: ConvNormAct(convolution(16, 24)), 1),
    "a bias": (lambda: ConvNormAct(nn.Conv2d(16, 24, 3, 2, 1), nn.Hardswish), 1),
    "without an activation": (lambda: ConvNormAct(convolution(16, 24, 3), nn.Identity), 1),
    "without parameters": (lambda: ConvNormAct(convolution(16, 24), affine=False), 1),
    "depthwise": (lambda: ConvNormAct(convolution(16, 16, 3, groups=16)), 1),
    "blocks": (Stage, 2),
    "a Sequential": (row, 1),
    "layers in a Sequential": (lambda: nn.Sequential(nn.Identity(), nn.Sequential(row(), nn.Tanh())), 1),
    "grouped": (lambda: ConvNormAct(convolution(16, 24, 3, groups=2)), 0),
    "SiLU": (lambda: ConvNormAct(convolution(16, 24), nn.SiLU), 0),
    "statistics of the images": (lambda: ConvNormAct(convolution(16, 24), track_running_stats=False), 0),
}


def images() -> Tensor:
    return torch.randn(2, 16, 10, 10).contiguous(memory_format=LAST)


def folded(model: nn.Module) -> int:
    """How many kernels of chains a call in evaluation runs."""
    with torch.no_grad():
        return kernels_of(model.eval(), images(), "conv_chain")


@pytest.mark.parametrize("name", MODELS)
def test_evaluation(name: str) -> None:
    make, count = MODELS[name]
    stock = drawn(make()).eval()
    model = opswap.swap(copy.deepcopy(stock))
    assert folded(model) == count
    assert_model_as_near(model, stock, lambda: (images(),))
    assert_model_as_near(model, stock, lambda: (images().requires_grad_(),))
    opswap.freeze(model)
    x = images()
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
    if type(model) is not nn.Sequential and not name.startswith("statistics"):
        assert plans(model) == 1, kept(model).refused
    assert list(opswap.unswap(model).state_dict()) == list(stock.state_dict())


@pytest.mark.parametrize("name", MODELS)
def test_training_is_that_of_the_other_rules(name: str, one_thread: None) -> None:
    """The same bits as with the rules for the parts, statistics included."""
    stock = drawn(MODELS[name][0]())
    with_rule, without = (opswap.swap(copy.deepcopy(stock), rules=r) for r in (DEFAULT, OTHERS))
    x = images()
    assert_equal(outputs_and_gradients(with_rule, x), outputs_and_gradients(without, x))
    for a, b in zip(with_rule.buffers(), without.buffers(), strict=True):
        assert torch.equal(a, b)


def test_one_that_only_shares_the_sequential_is_not_inlined() -> None:
    """Blocks whose only change is a call of F.batch_norm keep their own forwards."""
    blocks = ConvNormAct(convolution(16, 24), nn.SiLU), ConvNormAct(convolution(24, 16), nn.Identity)
    model = opswap.swap(nn.Sequential(*blocks, Stage()).to(memory_format=LAST))
    assert {s.path.partition(".")[0] for s in opswap.report(model).swapped} == {"0", "1", "2"}
    assert "forward" not in vars(model)


def test_training_has_a_rule_of_its_own() -> None:
    model = opswap.swap(MODELS["a block"][0]())
    assert {s.rule for s in opswap.report(model).swapped} >= {"conv_folded", "batch_norm_act"}


def other_statistics(model: Any) -> None:
    model.bn.running_var = torch.linspace(0.5, 2, 24)


def written_bias(model: Any) -> None:
    model.bn.bias.data.fill_(0.25)


def written_weight(model: Any) -> None:
    with torch.no_grad():
        model.conv.weight.mul_(-2)


def other_eps(model: Any) -> None:
    model.bn.eps = 0.1


def other_activation(model: Any) -> None:
    model.bn.act = nn.Tanh()


def dropped(model: Any) -> None:
    model.bn.drop = nn.Tanh()


def hook_on_norm(model: Any) -> None:
    model.bn.register_forward_hook(lambda m, args, output: output * 2)


def hook_on_convolution(model: Any) -> None:
    model.conv.register_forward_hook(lambda m, args, output: output * 2)


def norm_in_training(model: Any) -> None:
    model.bn.train()


CHANGES = [
    other_statistics,
    written_bias,
    written_weight,
    other_eps,
    other_activation,
    dropped,
    hook_on_norm,
    hook_on_convolution,
    norm_in_training,
]


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changed_after_the_swap(change: Callable[[Any], None], frozen: bool) -> None:
    stock = drawn(ConvNormAct(convolution(16, 24))).eval()
    model = opswap.swap(copy.deepcopy(stock))
    if frozen:
        opswap.freeze(model)
    x = images()
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
        for m in (stock, model):
            change(m)
        for _ in range(6):
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
    for name, buffer in stock.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer, rtol=1e-4, atol=1e-5)


class CountsWithFixedStatistics(nn.BatchNorm2d):
    """Normalises with running statistics, and counts the batches all the same."""

    def forward(self, x: Tensor) -> Tensor:
        self.num_batches_tracked.add_(1)
        return T.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, self.eps
        )


class CountsWithoutStatistics(nn.BatchNorm2d):
    """Normalises with the statistics of its input, also in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        self.num_batches_tracked.add_(1)
        return T.batch_norm(x, None, None, self.weight, self.bias, True, 0.1, self.eps)


class CountsTwice(nn.BatchNorm2d):
    """With a second counter, which is no other module's."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("all_num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_batches_tracked.add_(1)
            self.all_num_batches_tracked.add_(1)
        mean, var, training = self.running_mean, self.running_var, self.training
        return T.batch_norm(x, mean, var, self.weight, self.bias, training, 0.1, self.eps)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", [CountsWithFixedStatistics, CountsWithoutStatistics, CountsTwice])
def test_batches_are_counted_as_written(norm: Callable[[int], nn.Module], training: bool) -> None:
    layers = [convolution(16, 24), norm(24), nn.ReLU(), convolution(24, 16), norm(16)]
    stock = nn.Sequential(*layers).to(memory_format=LAST).train(training)
    x = torch.randn(2, 16, 8, 8).contiguous(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)
    for (name, expected), found in zip(stock.named_buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, msg=name)
