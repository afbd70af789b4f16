# SPDX-License-Identifier: MIT
"""Convolutions of models swapped in float32 that run in 16 bits later, or under autocast, where these are slow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import counts
from inputs import layout_of
from opswap.ops import reduced_precision
from opswap.ops.reduced_precision import float32_able
from twins import twins

pytestmark = pytest.mark.usefixtures("every_rule_applies", "every_half_is_slow")
LAST = torch.channels_last
OWN = {"pointwise_conv", "depthwise_conv", "conv2d"}


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


LAYERS: dict[str, Callable[[], nn.Conv2d]] = {
    "1x1": lambda: nn.Conv2d(24, 20, 1),
    "1x1, no bias": lambda: nn.Conv2d(24, 20, 1, bias=False),
    "1x1, stride": lambda: nn.Conv2d(24, 24, 1, 2),
    "few channels": lambda: nn.Conv2d(8, 8, 1, (2, 1)),
    "3x3": lambda: nn.Conv2d(64, 64, 3, padding=1),
    "3x3, stride": lambda: nn.Conv2d(64, 64, 3, 2, bias=False),
    "13x1": lambda: nn.Conv2d(64, 72, (13, 1)),
    "dilation": lambda: nn.Conv2d(64, 64, 3, padding="same", dilation=2),
    "depthwise": lambda: nn.Conv2d(24, 24, 3, padding=1, groups=24),
    "depthwise, stride": lambda: nn.Conv2d(24, 24, 3, 2, 1, groups=24),
    "depthwise, 5x5": lambda: nn.Conv2d(24, 24, 5, padding="same", groups=24, bias=False),
}


def swapped(stock: nn.Module) -> nn.Module:
    model = opswap.swap(copy.deepcopy(stock))
    if not OWN & {s.rule for s in opswap.report(model).swapped}:
        pytest.skip("the tiers of this CPU have no kernels for it")
    return model


def images(channels: int = 24, memory_format: torch.memory_format = LAST) -> Tensor:
    return torch.randn(3, channels, 15, 13).contiguous(memory_format=memory_format)


def gradients(output: Tensor, model: nn.Module, x: Tensor, grad: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output, [x, *model.parameters()], grad))


def assert_rounded(ours: Tensor, wide: Tensor, dtype: torch.dtype) -> None:
    """As the wide one rounded to dtype, by the largest of its values."""
    torch.testing.assert_close(
        ours.float(), wide, rtol=0, atol=2 * torch.finfo(dtype).eps * float(wide.abs().max())
    )


@pytest.mark.parametrize("memory_format", [LAST, torch.contiguous_format], ids=["last", "contiguous"])
@pytest.mark.parametrize("layer", LAYERS)
def test_computed_in_float32(layer: str, memory_format: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    stock = nn.Sequential(LAYERS[layer]())
    model = swapped(stock)
    x = images(LAYERS[layer]().in_channels, memory_format).requires_grad_()
    opswap.reset_stats()
    with torch.autocast("cpu", dtype):
        output = model(x)
        expected = stock(x)
    kernels, references = counts()
    assert kernels.get("conv2d", 0) + kernels.get("depthwise_conv2d", 0) == 1 and not references
    assert output.dtype is dtype and output.stride() == expected.stride()
    wide = stock(x)
    assert_rounded(output.detach(), wide.detach(), dtype)
    grad = torch.randn_like(wide).to(dtype)
    ours = gradients(output, model, x, grad)
    assert layout_of(ours[0]) == layout_of(x)
    for one, other in zip(ours, gradients(wide, stock, x, grad.float()), strict=True):
        assert one.dtype is torch.float32
        assert_rounded(one, other, dtype)


@pytest.mark.parametrize("layer", LAYERS)
def test_cast_to_16_bits_later(layer: str, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    stock = nn.Sequential(LAYERS[layer]())
    model = swapped(stock).to(dtype)
    x = images(LAYERS[layer]().in_channels).to(dtype).requires_grad_()
    opswap.reset_stats()
    output = model(x)
    kernels, references = counts()
    assert kernels.get("conv2d", 0) + kernels.get("depthwise_conv2d", 0) == 1 and not references
    wide = copy.deepcopy(model).float()
    wide_x = x.detach().float().requires_grad_()
    expected = wide(wide_x)
    assert_rounded(output.detach(), expected.detach(), dtype)
    grad = torch.randn_like(output)
    ours = gradients(output, model, x, grad)
    for one, other in zip(ours, gradients(expected, wide, wide_x, grad.float()), strict=True):
        assert one.dtype is dtype
        assert_rounded(one, other, dtype)


@pytest.mark.parametrize("layer", LAYERS)
def test_without_a_graph_and_inside_of_inference(layer: str, dtype: torch.dtype) -> None:
    stock = nn.Sequential(LAYERS[layer]())
    model = swapped(stock)
    x = images(model[0].in_channels)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), torch.autocast("cpu", dtype):
            opswap.reset_stats()
            output = model(x)
            assert output.dtype is dtype and not output.requires_grad and not counts()[1]
        assert_rounded(output.clone(), stock(x).detach(), dtype)


def test_in_float32_nothing_changes() -> None:
    """Without autocast, in float64, and under another dtype of autocast the kernels are those of before."""
    model = swapped(nn.Sequential(nn.Conv2d(24, 20, 1)))
    for module, x in ((model, images()), (copy.deepcopy(model).double(), images().double())):
        assert not float32_able(module[0], x)
        opswap.reset_stats()
        module(x)
        assert counts() == ({"pointwise_conv2d": 1}, {})
    opswap.reset_stats()
    with torch.autocast("cpu", torch.bfloat16):
        output = copy.deepcopy(model).double()(images().double())
    assert output.dtype is torch.float64 and "conv2d" not in counts()[0]


def test_not_on_a_cpu_with_instructions(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    model = swapped(nn.Sequential(nn.Conv2d(24, 20, 1)))
    stock = opswap.unswap(copy.deepcopy(model))
    for name in ("SLOW", "SLOW_DEPTHWISE"):
        monkeypatch.setattr(reduced_precision, name, frozenset())
    x = images()
    with torch.autocast("cpu", dtype):
        assert not float32_able(model[0], x)
        assert torch.equal(model(x), stock(x))
    assert "conv2d" not in counts()[0]


def test_what_stays_torchs(dtype: torch.dtype) -> None:
    """Integers, float64 and another device; padding with other values than zeros; a method of the user's own."""
    layer, x = nn.Conv2d(24, 20, 1), images()
    reflects = nn.Conv2d(24, 20, 3, padding=1, padding_mode="reflect")
    own = nn.Conv2d(24, 20, 1)
    own._conv_forward = lambda *args: nn.Conv2d._conv_forward(own, *args) + 1
    assert not float32_able(layer, x)
    with torch.autocast("cpu", dtype):
        assert float32_able(layer, x) and float32_able(layer, x.to(dtype))
        assert not float32_able(layer, x.double()) and not float32_able(layer, x.long())
        assert not float32_able(layer, x.to("meta")) and not float32_able(layer, "x")
        assert not float32_able(reflects, x) and not float32_able(own, x)
        assert not float32_able(copy.deepcopy(layer).double(), x)
    with torch.autocast("cpu", enabled=False):
        assert not float32_able(layer, x) and not float32_able(layer, x.to(dtype))


@pytest.mark.parametrize(
    ("layer", "size", "options"),
    [
        ("1x1", (20, 24, 1, 1), {"padding": (1, 1)}),
        ("1x1", (20, 24, 3, 3), {"padding": (1, 1)}),
        ("1x1", (20, 24, 3, 3), {"dilation": (2, 2)}),
        ("1x1", (20, 12, 1, 1), {"groups": 2}),
        ("1x1", (20, 24, 1, 1), {"padding": [0, 0], "stride": [2, 2]}),
        ("3x3", (64, 32, 3, 3), {"groups": 2}),
        ("3x3", (64, 1, 3, 3), {"groups": 64}),
        ("3x3", (64, 64, 5, 5), {"padding": "same", "dilation": (1, 2)}),
        ("depthwise", (48, 1, 3, 3), {}),
        ("depthwise", (24, 6, 3, 3), {"groups": 4}),
        ("depthwise", (24, 24, 3, 3), {"groups": 1}),
        ("depthwise", (24, 1, 5, 3), {"padding": (3, 0), "stride": (2, 1)}),
    ],
)
@pytest.mark.parametrize("cast", [False, True])
def test_options_may_change_after_the_swap(
    layer: str, size: tuple[int, ...], options: dict[str, Any], cast: bool, dtype: torch.dtype
) -> None:
    model = swapped(nn.Sequential(LAYERS[layer]()))
    x = images(model[0].in_channels)
    model[0].weight, model[0].bias = nn.Parameter(torch.randn(size)), None
    for name, value in options.items():
        setattr(model[0], name, value)
    stock = opswap.unswap(copy.deepcopy(model))
    if cast:
        model, x = model.to(dtype), x.to(dtype)
    expected = stock(x.float()).detach()
    with torch.autocast("cpu", dtype, enabled=not cast):
        output = model(x)
    assert output.dtype is dtype and output.shape == expected.shape
    atol = (8 if cast else 4) * torch.finfo(dtype).eps * float(expected.abs().max())
    torch.testing.assert_close(output.float(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("layer", ["1x1", "3x3", "depthwise", "depthwise, stride"])
def test_transforms_are_torchs(layer: str, dtype: torch.dtype) -> None:
    """Under vmap autocast does not reach the convolution."""
    stock = nn.Sequential(LAYERS[layer]())
    model = swapped(stock)
    x = torch.stack([images(model[0].in_channels) for _ in range(2)])
    with torch.autocast("cpu", dtype):
        ours, theirs = (torch.func.vmap(m)(x) for m in (model, stock))
    assert ours.dtype is theirs.dtype
    torch.testing.assert_close(ours, theirs)


def test_a_weight_that_draws_is_read_as_often_as_by_torch(dtype: torch.dtype) -> None:
    class Noisy(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight + torch.randn_like(weight)

    stock = nn.Sequential(nn.Conv2d(24, 20, 1))
    torch.nn.utils.parametrize.register_parametrization(stock[0], "weight", Noisy())
    model, x = opswap.swap(copy.deepcopy(stock)), images()
    with torch.autocast("cpu", dtype):
        torch.manual_seed(4)
        expected = stock(x)
        torch.manual_seed(4)
        assert torch.equal(model(x), expected)


class Net(nn.Module):
    """Convolutions of every kind, alone and in a chain, with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(8, 24, 3, 2, bias=False)
        self.body = nn.Sequential(
            nn.Conv2d(24, 24, 1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, 2, 1, groups=24, bias=False),
            nn.BatchNorm2d(24),
        )
        self.last = nn.Conv2d(24, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.body(self.stem(x).relu())).mean((2, 3)))


def run(model: nn.Module, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        return model(x)


@pytest.mark.parametrize("train", [True, False])
def test_a_network(train: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    stock = Net().train(train)
    model = swapped(stock)
    x = torch.randn(8, 8, 33, 33).contiguous(memory_format=LAST)
    wide = run(stock, x, None)
    for twin in (model, *twins(model)):
        opswap.reset_stats()
        output = run(twin, x, dtype)
        assert not {"pointwise_conv2d", "depthwise_conv2d"} & counts()[1].keys()
        torch.testing.assert_close(output.float(), wide, rtol=0.05, atol=0.05)
        output.float().sum().backward()
        assert {p.grad.dtype for p in twin.parameters()} == {torch.float32}
    torch.testing.assert_close(run(model.eval(), x, None), run(stock.eval(), x, None), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("layer", ["1x1", "3x3", "depthwise, stride"])
def test_compiled(layer: str) -> None:
    torch._dynamo.reset()
    model = swapped(nn.Sequential(LAYERS[layer]()))
    x = images(model[0].in_channels)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    output = run(compiled, x, torch.bfloat16)
    assert output.dtype is torch.bfloat16
    torch.testing.assert_close(output, run(model, x, torch.bfloat16), rtol=2e-2, atol=2e-2)
