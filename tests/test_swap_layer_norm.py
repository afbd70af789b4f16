# SPDX-License-Identifier: MIT
"""The rule for LayerNorm: which spellings it takes, in which layouts and sizes, and what stays torch's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from counted import kernels
from nearness import assert_model_as_near
from opswap.swap.rules import layer_norm as rules
from step import assert_equal, assert_same_outcome, outputs_and_gradients

LAST, RULES = torch.channels_last, rules.RULES
SIZES = ("_FEWEST", "_FEWEST_LONG", "_FEWEST_TRAINED", "_FEWEST_SHARED", "_FEWEST_ARITHMETIC")
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() == "scalar", reason="left to torch on this tier"),
    pytest.mark.usefixtures("every_rule_applies", "every_size"),
]


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs are replaced too."""
    for name in SIZES:
        monkeypatch.setattr(rules, name, 0)


class LayerNorm2d(nn.LayerNorm):
    """As timm and torchvision write it."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class PaperNorm(nn.Module):
    """As the ConvNeXt paper's code writes it, in both of its formats."""

    def __init__(self, channels: int, eps: float = 1e-6, data_format: str = "channels_first") -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels))
        self.eps, self.data_format = eps, data_format
        self.normalized_shape = (channels,)

    def forward(self, x: Tensor) -> Tensor:
        if self.data_format == "channels_last":
            return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return x


class OtherPaperNorm(PaperNorm):
    """The same in other words."""

    def forward(self, x: Tensor) -> Tensor:
        centered = x - torch.mean(x, dim=1, keepdim=True)
        variance = (centered**2).mean(dim=(1,), keepdim=True)
        return (
            self.bias[:, None, None] + (centered / (variance + self.eps).sqrt()) * self.weight[:, None, None]
        )


class Block(nn.Module):
    """ConvNeXt's."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv_dw(x).permute(0, 2, 3, 1))
        y = self.fc2(F.gelu(self.fc1(y)))
        return x + y.permute(0, 3, 1, 2)


def behind_convolution(make: Callable[[int], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(12, 12, 1), make(12), nn.Conv2d(12, 4, 1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "timm's": behind_convolution(LayerNorm2d),
    "the paper's": behind_convolution(PaperNorm),
    "the paper's in other words": behind_convolution(OtherPaperNorm),
    "ConvNeXt's block": Block,
}


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(2, 12, 9, 8) * 2 + 1).to(dtype).contiguous(memory_format=LAST)


def sites(model: nn.Module) -> list[str]:
    return [s.rule for s in opswap.report(model).swapped if s.rule == "layer_norm"]


@pytest.mark.parametrize("name", MODELS)
def test_replaced(name: str) -> None:
    stock = MODELS[name]().to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert sites(model) == ["layer_norm"]
    assert model.state_dict().keys() == stock.state_dict().keys()
    opswap.reset_stats()
    y = model(images())
    assert kernels("layer_norm") == 1
    assert y.stride() == stock(images()).stride()
    assert_model_as_near(model, stock, lambda: (images(),))
    twin, x = pickle.loads(pickle.dumps(copy.deepcopy(model))), images()
    assert_equal(outputs_and_gradients(twin, x), outputs_and_gradients(model, x))


@pytest.mark.parametrize("name", MODELS)
def test_exact_leaves_them(name: str) -> None:
    assert not sites(opswap.swap(MODELS[name](), exact=True))


@pytest.mark.parametrize("name", MODELS)
def test_other_tensors_run_torchs_code(name: str) -> None:
    """Bit for bit: contiguous images, whose channels are no neighbours, and float64."""
    stock = MODELS[name]()
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    for x in (images().contiguous(), images(torch.float64)):
        for m in (stock, model):
            m.to(x.dtype)
        opswap.reset_stats()
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
        assert not kernels("layer_norm")


def test_rows_of_tokens() -> None:
    """A LayerNorm of (N, L, C), too, of one dimension only."""
    for shape, count in (((16,), 1), ((5, 16), 0)):
        stock = nn.Sequential(nn.LayerNorm(shape), nn.Linear(16, 4))
        model = opswap.swap(copy.deepcopy(stock), rules=RULES)
        x = torch.randn(3, 5, 16)
        opswap.reset_stats()
        torch.testing.assert_close(model(x), stock(x))
        assert kernels("layer_norm") == count


class Unequal(PaperNorm):
    """Nearly the paper's."""

    def __init__(self, kind: str) -> None:
        super().__init__(12)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        u = x.mean(2 if self.kind == "rows" else 1, keepdim=True)
        power = 4 if self.kind == "fourths" else 2
        s = (x - u).pow(power).mean(1, keepdim=True)
        if self.kind == "uncentered":
            s = x.pow(2).mean(1, keepdim=True)
        if self.kind == "variance":
            s = x.var(1, keepdim=True)
        other = x + u if self.kind == "sum" else x - u
        x = other / torch.sqrt(s + self.eps)
        if self.kind == "used":
            x = x + s
        x = self.weight[:, None, None] * x + self.bias[:, None, None]
        return x * s if self.kind == "returned" else x


@pytest.mark.parametrize("kind", ["rows", "fourths", "uncentered", "variance", "sum", "used", "returned"])
def test_what_only_looks_like_it(kind: str) -> None:
    stock = nn.Sequential(Unequal(kind)).to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert not sites(model)
    x = images()
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))


def test_arithmetic_that_widens_is_kept() -> None:
    """bfloat16 beside parameters in float32 gives float32, and so does pow under autocast."""
    model = opswap.swap(nn.Sequential(PaperNorm(12)))
    assert model(images(torch.bfloat16)).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        stock = PaperNorm(12).bfloat16()
        half = opswap.swap(nn.Sequential(copy.deepcopy(stock)))
        assert half(images(torch.bfloat16)).dtype is stock(images(torch.bfloat16)).dtype
    opswap.reset_stats()
    assert half(images(torch.bfloat16)).dtype is torch.bfloat16 and kernels("layer_norm") == 1


CHANGES: dict[str, Callable[[nn.LayerNorm], None]] = {
    "another eps": lambda n: setattr(n, "eps", 0.5),
    "no weight": lambda n: setattr(n, "weight", None),
    "a short weight": lambda n: setattr(n, "weight", nn.Parameter(torch.ones(4))),
    "another shape": lambda n: setattr(n, "normalized_shape", (4,)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_noticed(change: str) -> None:
    stock = nn.Sequential(nn.LayerNorm(12), nn.ReLU())
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert sites(model)
    for m in (stock, model):
        CHANGES[change](m[0])
    x = torch.randn(5, 12)
    assert_same_outcome(lambda: model(x), lambda: stock(x), 20)


def test_sizes_that_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    few, many, more = (torch.randn(rows, 96) for rows in (1024, 12288, 24576))
    weight = torch.ones(96, requires_grad=True)
    assert not rules.layer_norm_wins(few, (96,)) and rules.layer_norm_wins(many[:3000], (96,))
    assert not rules.layer_norm_wins(many[:5000], (96,), weight)
    threads = torch.get_num_threads()
    try:
        for count, wins in ((1, True), (2, False)):
            torch.set_num_threads(count)
            assert rules.layer_norm_wins(many, (96,), weight) == wins and rules.layer_norm_wins(
                more, (96,), weight
            )
    finally:
        torch.set_num_threads(threads)
    assert rules.layer_norm_wins(many[:3000].bfloat16(), (96,), weight)
    assert not rules.layer_norm_wins(many.double(), (96,)) and not rules.layer_norm_wins(None, (96,))
    long = torch.ones(256, requires_grad=True)
    rows = more.view(-1, 256)
    assert rules.layer_norm_wins(rows, (256,)) and not rules.layer_norm_wins(rows[:4000], (256,))
    assert not rules.layer_norm_wins(rows, (256,), long) and rules.layer_norm_wins(
        rows.bfloat16(), (256,), long
    )
    vectors = torch.ones(12), torch.ones(12)
    assert not rules.arithmetic_wins(images(), *vectors, 1e-6)
    large = torch.randn(2, 12, 32, 32).contiguous(memory_format=LAST)
    assert rules.arithmetic_wins(large, *vectors, 1e-6)
    assert not rules.arithmetic_wins(large.contiguous(), *vectors, 1e-6)
    assert not rules.arithmetic_wins(None, *vectors, 1e-6)


class Named(nn.LayerNorm):
    """Its argument is called as the condition of the rule might be."""

    def forward(self, is_large: Tensor) -> Tensor:
        return F.layer_norm(is_large, self.normalized_shape, self.weight, self.bias, self.eps)


def test_an_argument_of_any_name() -> None:
    model, x = opswap.swap(Named(12)), torch.randn(4, 12)
    opswap.reset_stats()
    torch.testing.assert_close(model(x), Named(12)(x))
    assert kernels("layer_norm") == 1


class Twice(PaperNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(super().forward(x), self.normalized_shape, self.weight, self.bias, self.eps)


@pytest.mark.parametrize("training", [True, False])
def test_a_small_input_is_seen_before_all_else(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    stock = PaperNorm(12, data_format="channels_last").train(training)
    model = opswap.swap(copy.deepcopy(stock)).train(training)
    twice = opswap.swap(Twice(12, data_format="channels_last"))
    monkeypatch.setattr(rules, "_FEWEST", 1000)
    small, large = torch.randn(4, 12), torch.randn(100, 12)
    asked = []
    for swapped in (model, twice):
        scope = swapped.forward.__func__.__globals__
        holds = scope["opswap_holds"]
        monkeypatch.setitem(scope, "opswap_holds", lambda *a, h=holds: asked.append(a) or h(*a))
    assert_equal(model(small), stock(small))
    assert not asked
    model(large)
    assert len(asked) == 1
    twice(small)  # two regions, or one behind another operator
    assert len(asked) == 2
    monkeypatch.undo()
    monkeypatch.setattr(rules, "_FEWEST", 1000)
    (found,) = opswap.explain(model, small).outcomes
    assert (found.calls, found.ran) == (1, 0)
    assert found.reason == "torch is faster on fewer than 1000 elements: the input has 48"


def test_why_long_rows_are_torchs() -> None:
    model = opswap.swap(nn.Sequential(nn.LayerNorm(160)))
    assert "rows of more than 128 values" in str(opswap.explain(model, torch.randn(64, 160)))


def test_explain_and_unswap() -> None:
    model = opswap.swap(Block().to(memory_format=LAST))
    text = str(opswap.explain(model, images()))
    assert "layer_norm" in text and "ran" in text
    opswap.unswap(model)
    opswap.reset_stats()
    model(images())
    assert not kernels("layer_norm")


@pytest.mark.parametrize("name", MODELS)
def test_compiled_graphs(name: str) -> None:
    torch._dynamo.reset()
    stock = MODELS[name]().to(memory_format=LAST)
    x = images()
    opswap.reset_stats()
    compiled = torch.compile(copy.deepcopy(stock), backend="opswap")
    torch.testing.assert_close(compiled(x), stock(x), rtol=1e-4, atol=1e-4)
    assert kernels("layer_norm")
