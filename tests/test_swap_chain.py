# SPDX-License-Identifier: MIT
"""The rule for chains: which convolutions it joins, in which spellings, and what a model with it still may do."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import opswap
from counted import chains
from nearness import assert_model_as_near
from opswap.models import shufflenet_v2_x0_5, shufflenet_v2_x1_0
from opswap.ops import reduced_precision
from opswap.swap.rules import DEFAULT
from step import assert_equal, outputs_and_gradients

LAST = torch.channels_last
RULES = [rule for rule in DEFAULT if rule.name == "conv_chain"]
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies", "fresh_counts"),
]


def pointwise(channels: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(channels, outputs, 1, bias=False)


def depthwise(channels: int, side: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels, channels, side, stride, side // 2, groups=channels, bias=False)


def inverted(channels: int = 16, wide: int = 48, act: Callable[[], nn.Module] = nn.ReLU6) -> nn.Sequential:
    """A block of MobileNetV2 without what is added to it."""
    return nn.Sequential(
        *(pointwise(channels, wide), nn.BatchNorm2d(wide), act()),
        *(depthwise(wide), nn.BatchNorm2d(wide), act()),
        *(pointwise(wide, channels), nn.BatchNorm2d(channels)),
    ).to(memory_format=LAST)


class Spelled(nn.Module):
    """The same in a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.norm1 = pointwise(16, 32), nn.BatchNorm2d(32)
        self.spatial, self.norm2 = depthwise(32, 5, 2), nn.BatchNorm2d(32)
        self.project, self.norm3 = pointwise(32, 24), nn.BatchNorm2d(24)

    def forward(self, x: Tensor) -> Tensor:
        x = T.relu(self.norm1(self.expand(x)))
        x = self.norm2(self.spatial(x)).relu_()
        return self.norm3(self.project(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = inverted()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def images(size: int = 9, channels: int = 16) -> Tensor:
    return torch.randn(4, channels, size, size).contiguous(memory_format=LAST)


def swapped(model: nn.Module) -> nn.Module:
    return opswap.swap(copy.deepcopy(model), rules=RULES)


@pytest.mark.parametrize(
    "make",
    [
        inverted,
        lambda: inverted(act=nn.Hardswish),
        lambda: inverted(act=lambda: nn.ReLU(inplace=True)),
        lambda: inverted(act=lambda: nn.Hardtanh(-0.5, 2.0)),
        Spelled,
        Residual,
        lambda: nn.Sequential(nn.Identity(), inverted(), nn.ReLU()),
        lambda: nn.Sequential(depthwise(16), nn.BatchNorm2d(16), pointwise(16, 24), nn.BatchNorm2d(24)),
    ],
)
def test_taken(make: Callable[[], nn.Module]) -> None:
    stock = make().to(memory_format=LAST)
    model = swapped(stock)
    (site,) = opswap.report(model).swapped
    assert site.rule == "conv_chain" and not site.exact
    x = images()
    outputs_and_gradients(model, x)
    assert chains() == (1, 1)
    assert_model_as_near(swapped(stock), stock, lambda: (images(),), times=4)
    for name, buffer in stock.named_buffers():
        if name.endswith("num_batches_tracked"):
            assert buffer == 0 and model.get_buffer(name) == 1
    assert list(opswap.unswap(model).state_dict()) == list(stock.state_dict())


class Between(Spelled):
    """Calls of the chain, and what a subclass does between them."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside = inside  # between a convolution and its normalisation, or behind the activation

    def between(self, y: Tensor) -> Tensor | float | int:
        return y.shape[0] * y.size(1) + 0 * self.norm3.eps

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = T.relu(self.norm1(self.expand(x)))
        more = 0 if self.inside else self.between(y)
        x = self.spatial(x)
        if self.inside:
            more = self.between(y)
        return self.project(T.relu(self.norm2(x))) + more


class GetsParameters(Between):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.norm1(self.expand(x))
        weight, counted = self.norm2.weight, self.norm2.num_batches_tracked
        return T.relu(self.norm2(self.spatial(T.relu(x)))) * weight[:, None, None] + counted


class CallsANorm(Between):
    def between(self, y: Tensor) -> Tensor:
        return self.norm2(y).mean()


class ReadsStatistics(Between):
    def between(self, y: Tensor) -> Tensor:
        return self.norm2.running_mean.sum() + self.norm2.num_batches_tracked


class WritesStatistics(Between):
    def between(self, y: Tensor) -> float:
        self.norm2.running_mean.mul_(0.5)
        return 0.0


class Raises(Between):
    def between(self, y: Tensor) -> Tensor:
        return y.view(3, 5).mean()


class AsksAChild(Between):
    """A child whose forward is not looked into, and finds another part of the chain in its own way."""

    def __init__(self, inside: bool) -> None:
        super().__init__(inside)
        self.child = Halves([self.norm2])

    def between(self, y: Tensor) -> Tensor:
        return self.child(y)


class Halves(nn.Module):
    def __init__(self, norms: list[nn.Module]) -> None:
        super().__init__()
        self.norms = norms

    def forward(self, y: Tensor) -> Tensor:
        with contextlib.suppress(KeyError):
            self.norms[0].running_var.mul_(0.5)
        return y.mean()


def observed(model: nn.Module, x: Tensor, y: Tensor) -> tuple[list[Tensor], list[str], dict[str, Tensor]]:
    """What three forwards return and raise, and the state after them."""
    outputs, errors = [], []
    for _ in range(3):
        try:
            outputs.append(model(x, y).detach())
        except RuntimeError as error:
            errors.append(str(error))
    return outputs, errors, dict(model.state_dict())


def assert_alike(ours: nn.Module, stock: nn.Module, x: Tensor, y: Tensor) -> None:
    (outputs, errors, state), expected = observed(ours, x, y), observed(stock, x, y)
    torch.testing.assert_close(outputs, expected[0], rtol=1e-3, atol=1e-3)
    assert errors == expected[1]
    torch.testing.assert_close(state, expected[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("cls", [CallsANorm, ReadsStatistics, WritesStatistics, Raises, AsksAChild])
@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
def test_what_stands_between_the_calls(cls: type[Between], inside: bool, mode: str) -> None:
    """It sees and leaves the statistics of stock, if it raises too."""
    stock = cls(inside).to(memory_format=LAST).train(mode != "eval")
    if mode == "frozen":
        stock.norm3.eval()
    ours = opswap.swap(copy.deepcopy(stock))
    x, y = images(), images(5, 32) + 3
    with torch.set_grad_enabled(mode != "eval"):
        assert_alike(ours, stock, x, y)


@pytest.mark.parametrize(
    "make", [lambda: Between(True), lambda: Between(False), lambda: GetsParameters(True)]
)
def test_sizes_and_parameters_between_the_calls(make: Callable[[], Between]) -> None:
    stock = make().to(memory_format=LAST)
    ours = swapped(stock)
    assert_alike(ours, stock, images(), images())
    assert chains() == (3, 0)


def altered(index: int, **attributes: object) -> nn.Sequential:
    model = inverted()
    for name, value in attributes.items():
        setattr(model[index], name, value)
    return model


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(pointwise(16, 24), nn.BatchNorm2d(24), nn.ReLU()),  # one stage
        nn.Sequential(pointwise(16, 24), nn.ReLU(), pointwise(24, 16), nn.BatchNorm2d(16)),
        nn.Sequential(nn.Conv2d(16, 24, 1), nn.BatchNorm2d(24), pointwise(24, 16), nn.BatchNorm2d(16)),
        nn.Sequential(
            pointwise(16, 24), nn.BatchNorm2d(24), nn.SiLU(), pointwise(24, 16), nn.BatchNorm2d(16)
        ),
        nn.Sequential(
            pointwise(16, 24), nn.BatchNorm2d(24), nn.Conv2d(24, 24, 3, bias=False), nn.BatchNorm2d(24)
        ),
        inverted(8, 12),
        altered(3, dilation=(2, 2)),
        altered(3, padding_mode="circular"),
        altered(3, padding=(0, 1)),
        altered(3, stride=(3, 3)),
        altered(3, stride=(1, 2)),
        nn.Sequential(
            *(pointwise(16, 24), nn.BatchNorm2d(24)),
            *(nn.Conv2d(24, 48, 3, padding=1, groups=24, bias=False), nn.BatchNorm2d(48)),
        ),
    ],
    ids=[
        *("one", "no norm", "bias", "silu", "dense", "few channels", "dilation", "circular", "padding"),
        *("stride 3", "stride 1 x 2", "multiplier"),
    ],
)
def test_left_alone(model: nn.Module) -> None:
    assert not opswap.scan(model, rules=RULES).swapped


def test_an_activation_that_chains_lack_ends_one() -> None:
    model = nn.Sequential(
        *(pointwise(16, 24), nn.BatchNorm2d(24), nn.ReLU(), depthwise(24), nn.BatchNorm2d(24)),
        nn.SiLU(),
        *(pointwise(24, 16), nn.BatchNorm2d(16)),
    ).to(memory_format=LAST)
    ours = swapped(model)
    assert len(opswap.report(ours).swapped) == 1
    assert_model_as_near(ours, model, lambda: (images(),))


def test_shufflenet() -> None:
    stock = shufflenet_v2_x1_0()
    found = [s for s in opswap.scan(stock).swapped if s.rule == "conv_chain"]
    assert len(found) == 19  # 13 blocks, three more branches, and one branch of each stage's first block
    model = opswap.swap(shufflenet_v2_x0_5(num_classes=10)).to(memory_format=LAST)
    model(torch.randn(4, 3, 64, 64).contiguous(memory_format=LAST)).sum().backward()
    assert chains() == (19, 19)
    assert not [s for s in opswap.scan(stock, exact=True).swapped if s.rule == "conv_chain"]
    rules = [rule for rule in DEFAULT if rule.name != "conv_chain"]
    assert not [s for s in opswap.scan(stock, rules=rules).swapped if s.rule == "conv_chain"]


# What a user may do to a swapped model.
CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "hook": lambda m: m[3].register_forward_hook(lambda m, i, o: o * 2),
    "parametrized": lambda m: parametrizations.weight_norm(m[0]),
    "activation": lambda m: m.__setitem__(2, nn.Sigmoid()),
    "window": lambda m: setattr(m[3], "padding", (2, 2)) or setattr(m[3], "dilation", (2, 2)),
    "frozen": lambda m: m[4].eval(),
    "bias": lambda m: setattr(m[0], "bias", nn.Parameter(torch.ones(48))),
    "double": lambda m: m.double(),
    "no statistics": lambda m: m.__setitem__(1, nn.BatchNorm2d(48, track_running_stats=False)),
    "cumulative": lambda m: setattr(m[1], "momentum", None),
}


@pytest.mark.parametrize("how", CHANGES)
def test_changes_after_the_swap(how: str) -> None:
    stock = inverted()
    ours = swapped(stock)
    for model in (stock, ours):
        CHANGES[how](model)
    ours.load_state_dict(stock.state_dict())
    dtype = torch.float64 if how == "double" else torch.float32
    for _ in range(2):
        x = images().to(dtype)
        theirs = outputs_and_gradients(stock, x)
        for a, b in zip(outputs_and_gradients(ours, x), theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(ours.state_dict(), stock.state_dict(), rtol=1e-4, atol=1e-5)
    assert (chains() == (0, 0)) == (how != "cumulative")


@pytest.mark.parametrize("name", ["weight", "running_mean", "num_batches_tracked"])
def test_a_deleted_part_raises_after_the_calls_before_it(name: str) -> None:
    stock = inverted()
    ours = swapped(stock)
    for model in (stock, ours):
        delattr(model[4], name)
        with pytest.raises(AttributeError, match=name):
            model(images())
        assert model[1].num_batches_tracked == 1 and model[7].num_batches_tracked == 0
    assert list(ours.state_dict()) == list(stock.state_dict())
    if name != "num_batches_tracked":
        assert stock[4].num_batches_tracked == ours[4].num_batches_tracked == 1


def test_frozen_parameters_and_input() -> None:
    stock = inverted()
    for i in (0, 4):
        stock[i].requires_grad_(False)
    assert_model_as_near(swapped(stock), stock, lambda: (images(),))
    stock.requires_grad_(False)
    x = images().requires_grad_()
    swapped(stock)(x).sum().backward()
    assert x.grad is not None and chains()[1] >= 1


def test_evaluation_and_no_grad() -> None:
    stock = inverted()
    ours = swapped(stock).eval()
    stock.eval()
    x = images()
    torch.testing.assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-5)
    assert chains() == (0, 0)  # with a graph
    with torch.no_grad():
        torch.testing.assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-5)
    assert chains() == (2, 0)


def test_contiguous_input() -> None:
    stock = inverted()
    x = images().contiguous()
    ours = swapped(stock)
    for a, b in zip(outputs_and_gradients(ours, x), outputs_and_gradients(stock, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
        assert a.stride() == b.stride()
    assert chains() == (1, 1)


def test_shared_modules() -> None:
    norm, convolution = nn.BatchNorm2d(16), pointwise(16, 16)
    stock = nn.Sequential(convolution, norm, convolution, norm).to(memory_format=LAST)
    ours = swapped(stock)
    x = images()
    for a, b in zip(outputs_and_gradients(ours, x), outputs_and_gradients(stock, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours.state_dict(), stock.state_dict(), rtol=1e-4, atol=1e-5)


def test_a_shared_counter() -> None:
    """Cumulative averages that share one count in between: the layers run one by one."""
    stock = inverted()
    norms = [m for m in stock if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.num_batches_tracked = norms[0].num_batches_tracked
    ours = swapped(stock)
    for x in (images(), images()):
        torch.testing.assert_close(ours(x), stock(x), rtol=1e-4, atol=1e-4)
    for expected, found in zip(stock.buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert chains() == (0, 0) and norms[0].num_batches_tracked == 6


def test_copies_and_checkpoints() -> None:
    model = swapped(inverted())
    x = images()
    expected = outputs_and_gradients(copy.deepcopy(model), x)
    assert_equal(outputs_and_gradients(pickle.loads(pickle.dumps(model)), x), expected)
    held = copy.deepcopy(model)
    y = x.clone().requires_grad_()
    output = checkpoint(held, y, use_reentrant=False)
    weight = torch.linspace(-1, 1, output.numel()).view_as(output)
    (output * weight).sum().backward()
    assert_equal([output.detach(), y.grad], expected[:2])
    assert held[1].num_batches_tracked == 2  # counted again, as stock's is


def test_compiled_and_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced_precision, "SLOW", frozenset())  # else see test_chain_autocast.py
    stock = inverted()
    ours = swapped(stock)
    x = images()
    compiled = torch.compile(copy.deepcopy(ours), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), copy.deepcopy(stock)(x), rtol=1e-4, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ours(x), stock(x), rtol=0.05, atol=0.1)
    assert chains() == (0, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_16_bits(dtype: torch.dtype) -> None:
    """A chain has no kernels for them: the BatchNorms are joined with their activations alone."""
    rules = [r for r in DEFAULT if r.name in ("conv_chain", "conv_folded", "batch_norm", "batch_norm_act")]
    model = opswap.swap(inverted().to(dtype), rules=rules)
    assert {s.rule for s in opswap.report(model).swapped} == {"batch_norm", "batch_norm_act"}
    assert {s.rule for s in opswap.report(opswap.swap(inverted(), rules=rules)).swapped} >= {"conv_chain"}


def test_converted_to_sync_batch_norm() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(swapped(inverted()))
    model.eval()(images())
    assert chains() == (0, 0)
