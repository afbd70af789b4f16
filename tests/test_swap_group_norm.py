# SPDX-License-Identifier: MIT
"""The rules for GroupNorm and InstanceNorm, as modules and as calls: which ones they take, what may change."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from counted import kernels
from nearness import assert_model_as_near
from opswap.swap.rules import group_norm as rules
from step import assert_equal, assert_same_outcome, outputs_and_gradients

LAST = torch.channels_last
RULES = ("group_norm", "instance_norm")
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() == "scalar", reason="left to torch on this tier"),
    pytest.mark.usefixtures("every_rule_applies", "every_size"),
]


@pytest.fixture
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small inputs are replaced too."""
    for name in ("_FEWEST", "_FEWEST_IN_NARROW_GROUPS", "_FEWEST_INSTANCES"):
        monkeypatch.setattr(rules, name, 0)


class UNet(nn.Module):
    """Two levels, with GroupNorm and interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.inner = nn.Sequential(nn.Conv2d(16, 24, 3, 2, 1), nn.GroupNorm(8, 24), nn.SiLU())
        self.up = nn.Conv2d(40, 16, 3, padding=1)
        self.norm = nn.GroupNorm(16, 16, affine=False)
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        inner = F.interpolate(self.inner(skip), scale_factor=2, mode="bilinear")
        return self.head(F.relu(self.norm(self.up(torch.cat((skip, inner), 1)))))


class Style(nn.Module):
    """Style transfer: InstanceNorm with and without parameters, in a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.InstanceNorm2d(12, affine=True), nn.ReLU()
        )
        self.conv, self.norm = nn.Conv2d(12, 12, 3, padding=1), nn.InstanceNorm2d(12)
        self.last = nn.Conv2d(12, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return torch.tanh(self.last(x + self.norm(self.conv(x))))


class Calls(nn.Module):
    """The functions, with parameters of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3)
        self.weight, self.bias = nn.Parameter(torch.rand(12) + 0.5), nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        x = F.group_norm(self.conv(x), 3, self.weight, bias=self.bias, eps=1e-3)
        return F.instance_norm(F.relu(x), weight=self.weight) * 2


class OwnNorm(nn.GroupNorm):
    """With a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input * 2, self.num_groups, self.weight, self.bias, self.eps) + 1


class Derived(nn.GroupNorm):
    """With torch's forward."""


def images(size: int = 8) -> Tensor:
    return torch.randn(2, 3, size, size).contiguous(memory_format=LAST)


def sites(model: nn.Module) -> list[tuple[str, str]]:
    return [(s.path, s.rule) for s in opswap.report(model).swapped if s.rule in RULES]


MODELS: dict[str, tuple[Callable[[], nn.Module], list[tuple[str, str]]]] = {
    "U-Net": (UNet, [("down.1", "group_norm"), ("inner.1", "group_norm"), ("norm", "group_norm")]),
    "style": (Style, [("first.1", "instance_norm"), ("norm", "instance_norm")]),
    "calls": (Calls, [("", "group_norm"), ("", "instance_norm")]),
    "own forward": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), OwnNorm(2, 8)), [("1", "group_norm")]),
    "derived": (lambda: nn.Sequential(nn.Conv2d(3, 8, 1), Derived(2, 8)), [("1", "group_norm")]),
    "volumes": (
        lambda: nn.Sequential(nn.ReLU(), nn.InstanceNorm3d(8, affine=True), nn.ReLU(), nn.GroupNorm(2, 8)),
        [("1", "instance_norm"), ("3", "group_norm")],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_replaced(name: str) -> None:
    make, wanted = MODELS[name]
    last = torch.channels_last_3d if name == "volumes" else LAST
    size = (2, 8, 4, 5, 6) if name == "volumes" else (2, 3, 8, 8)
    stock = make().to(memory_format=last)
    model = opswap.swap(copy.deepcopy(stock))
    assert sites(model) == wanted
    assert model.state_dict().keys() == stock.state_dict().keys()

    def draw() -> Tensor:
        return torch.randn(size).contiguous(memory_format=last)

    opswap.reset_stats()
    model(draw())
    assert kernels("group_norm") == len(wanted)
    assert_model_as_near(model, stock, lambda: (draw(),))
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    x = draw()
    assert_equal(outputs_and_gradients(twin, x), outputs_and_gradients(model, x))


@pytest.mark.parametrize("name", MODELS)
def test_exact_leaves_them(name: str) -> None:
    assert not sites(opswap.swap(MODELS[name][0](), exact=True))


@pytest.mark.parametrize("make", [lambda: nn.GroupNorm(2, 6), lambda: nn.InstanceNorm2d(6, affine=True)])
def test_other_tensors_run_torchs_function(make: Callable[[], nn.Module]) -> None:
    """Bit for bit: contiguous, float64, slices."""
    stock = nn.Sequential(make())
    model = opswap.swap(copy.deepcopy(stock))
    wide = torch.randn(2, 9, 5, 4).contiguous(memory_format=LAST)
    others = [torch.randn(2, 6, 5, 4), wide[:, :6].double()]
    for x in others:
        for m in (stock, model):
            m.to(x.dtype)
        opswap.reset_stats()
        assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
        assert not opswap.stats()["kernel"]
    assert torch.equal(model.float()(wide[:, 2:8]), stock.float()(wide[:, 2:8]))


def test_sizes_that_are_torchs() -> None:
    """Calls on few elements, and 16 bits of large images if no gradient is wanted."""
    assert rules._FEWEST == rules._FEWEST_INSTANCES == 0
    x, large = (torch.randn(2, 6, s, s).contiguous(memory_format=LAST) for s in (8, 40))
    weight = torch.ones(6, requires_grad=True)
    assert rules.group_norm_wins(x, 3) and rules.group_norm_wins(large, 3)
    assert not rules.group_norm_wins(x.double(), 3) and not rules.instance_norm_wins(x.double())
    half = large.bfloat16()
    assert not rules.group_norm_wins(half, 3) and rules.group_norm_wins(half, 3, weight)
    with torch.no_grad():
        assert not rules.group_norm_wins(half, 3, weight)
    assert rules.group_norm_wins(x.bfloat16(), 3) and rules.instance_norm_wins(half)


def test_few_elements_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    x = torch.randn(2, 6, 8, 8).contiguous(memory_format=LAST)
    assert not rules.group_norm_wins(x, 3) and not rules.instance_norm_wins(x)
    many = torch.randn(4, 64, 32, 32).contiguous(memory_format=LAST)
    assert rules.group_norm_wins(many, 8) and rules.instance_norm_wins(many)


def test_running_statistics_are_kept_by_torch() -> None:
    stock = nn.Sequential(nn.InstanceNorm2d(6, track_running_stats=True))
    model = opswap.swap(copy.deepcopy(stock))
    assert [s.rule for s in opswap.report(model).swapped] == ["instance_norm_gradient"]
    x = torch.randn(2, 6, 5, 4)
    torch.testing.assert_close(model(x), stock(x), rtol=0, atol=0)
    assert torch.equal(model[0].running_mean, stock[0].running_mean) and not kernels("group_norm")
    assert "single image" in str(opswap.explain(model, x))


class Straight(nn.Module):
    """Passes a tensor on, and gives a gradient in channels_last back."""

    def forward(self, x: Tensor) -> Tensor:
        return Gradient.apply(x)


class Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad.contiguous(memory_format=LAST if grad.dim() == 4 else torch.channels_last_3d)


class Call(nn.Module):
    """The function, with and without running statistics."""

    def __init__(self, tracks: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6) if tracks else None)
        self.register_buffer("var", torch.ones(6) if tracks else None)

    def forward(self, x: Tensor) -> Tensor:
        uses = self.training or self.mean is None
        return F.instance_norm(x, self.mean, self.var, use_input_stats=uses)


SINGLE_IMAGE = {
    "plain": lambda: nn.InstanceNorm2d(6),
    "affine": lambda: nn.InstanceNorm2d(6, affine=True),
    "running": lambda: nn.InstanceNorm2d(6, track_running_stats=True, momentum=None),
    "volumes": lambda: nn.InstanceNorm3d(6, affine=True, track_running_stats=True),
    "call": lambda: Call(False),
    "call, running": lambda: Call(True),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("make", SINGLE_IMAGE.values(), ids=SINGLE_IMAGE)
def test_a_single_image_has_the_right_gradient(
    make: Callable[[], nn.Module], exact: bool, training: bool, dtype: torch.dtype
) -> None:
    """torch 2.13 reads a gradient in channels_last as if contiguous, which stock code may never meet."""
    norm = make().to(dtype).train(training)
    model = opswap.swap(nn.Sequential(copy.deepcopy(norm), Straight()), exact=exact).train(training)
    sizes = (1, 6, 3, 5, 4) if isinstance(norm, nn.InstanceNorm3d) else (1, 6, 5, 4)
    x = torch.randn(sizes, dtype=dtype, requires_grad=True)
    factors = torch.randn(sizes, dtype=dtype)
    expected = torch.autograd.grad(norm(x), [x, *norm.parameters()], factors)
    got = torch.autograd.grad(model(x), [x, *model.parameters()], factors)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    for a, b in zip(model.buffers(), norm.buffers(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("make", SINGLE_IMAGE.values(), ids=SINGLE_IMAGE)
def test_a_single_image_in_channels_last_is_exact(make: Callable[[], nn.Module]) -> None:
    """The bits and the format of torch's output, which is contiguous, though a kernel would compute it too."""
    stock = nn.Sequential(make())
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    volumes = isinstance(stock[0], nn.InstanceNorm3d)
    x = torch.randn(1, 6, *((3, 50, 40) if volumes else (50, 40)))
    x = x.contiguous(memory_format=torch.channels_last_3d if volumes else LAST)
    opswap.reset_stats()
    got, want = model(x.requires_grad_()), stock(x)
    assert torch.equal(got, want) and got.stride() == want.stride() and not kernels("group_norm")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("behind", [nn.Identity, lambda: nn.Conv2d(6, 6, 1)], ids=["norm", "convolution"])
@pytest.mark.parametrize("calls", [True, False])
def test_a_single_image_in_code_that_needs_contiguous_tensors(
    calls: bool, behind: Callable[[], nn.Module], exact: bool
) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.behind = Call(False) if calls else nn.InstanceNorm2d(6), behind()

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            return self.behind(y).view(y.size(0), -1), Gradient.apply(y)

    stock, x = nn.Sequential(Viewing()), torch.randn(1, 6, 50, 40, requires_grad=True)
    model = opswap.swap(copy.deepcopy(stock), exact=exact)
    factors = torch.randn(1, 6, 50, 40)
    expected = torch.autograd.grad((stock[0].norm(x) * factors).sum(), x)
    for given in (x, x.contiguous(memory_format=LAST)):
        (got,) = torch.autograd.grad(model(given)[1], x, factors)
        torch.testing.assert_close(got, expected[0])


def test_running_statistics_that_come_after_the_swap() -> None:
    stock = nn.Sequential(nn.InstanceNorm2d(6))
    model = opswap.swap(copy.deepcopy(stock))
    for m in (stock[0], model[0]):
        m.running_mean, m.running_var = torch.zeros(6), torch.ones(6)
    x = torch.randn(1, 6, 5, 4, requires_grad=True)
    torch.testing.assert_close(model(x), stock(x), rtol=0, atol=0)
    assert torch.equal(model[0].running_mean, stock[0].running_mean) and stock[0].running_mean.any()


def test_the_function_has_the_right_gradient_of_a_single_image() -> None:
    x, factors = torch.randn(1, 6, 5, 4, requires_grad=True), torch.randn(1, 6, 5, 4)
    (expected,) = torch.autograd.grad(F.instance_norm(x), x, factors)
    (got,) = torch.autograd.grad(
        opswap.functional.instance_norm(x), x, factors.contiguous(memory_format=LAST)
    )
    torch.testing.assert_close(got, expected)
    gradient = torch.func.grad(lambda x: (opswap.functional.instance_norm(x) * factors).sum())(x.detach())
    torch.testing.assert_close(gradient, expected)


def test_code_that_needs_contiguous_tensors() -> None:
    """torch's InstanceNorm returns contiguous tensors, ours does not: a view behind it must go on working."""

    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 6, 1), nn.InstanceNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x)).view(x.size(0), -1)

    class Calling(Viewing):
        def forward(self, x: Tensor) -> Tensor:
            return F.instance_norm(x.relu()).view(x.size(0), -1)

    for cls in (Viewing, Calling):
        stock = cls().to(memory_format=LAST)
        model = opswap.swap(copy.deepcopy(stock))
        x = images()
        torch.testing.assert_close(model(x), stock(x))


CHANGES: dict[str, Callable[[nn.GroupNorm], Any]] = {
    "other groups": lambda n: setattr(n, "num_groups", 6),
    "groups that do not divide": lambda n: setattr(n, "num_groups", 5),
    "no weight": lambda n: setattr(n, "weight", None),
    "another weight": lambda n: setattr(n, "weight", nn.Parameter(torch.linspace(1, 2, 6))),
    "a short weight": lambda n: setattr(n, "weight", nn.Parameter(torch.ones(4))),
    "another eps": lambda n: setattr(n, "eps", 0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_noticed(change: str) -> None:
    stock = nn.Sequential(nn.GroupNorm(3, 6), nn.ReLU())
    model = opswap.swap(copy.deepcopy(stock))
    assert sites(model)
    for m in (stock, model):
        CHANGES[change](m[0])
    x = torch.randn(2, 6, 5, 4).contiguous(memory_format=LAST)
    assert_same_outcome(lambda: model(x), lambda: stock(x), 20)


def test_another_number_of_channels_warns_as_torch() -> None:
    model = opswap.swap(nn.Sequential(nn.InstanceNorm2d(6)))
    x = torch.randn(2, 8, 5, 4).contiguous(memory_format=LAST)
    with pytest.warns(UserWarning, match="num_features"):
        model(x)


def test_hooks_see_input_and_output() -> None:
    stock = UNet().to(memory_format=LAST)
    model, seen = opswap.swap(copy.deepcopy(stock)), []
    model.norm.register_forward_hook(lambda module, args, output: seen.append(output))
    model.norm.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    stock.norm.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = images()
    torch.testing.assert_close(model(x), stock(x))
    assert len(seen) == 1 and seen[0].shape == (2, 16, 8, 8)


def test_explain_and_unswap() -> None:
    model = opswap.swap(UNet().to(memory_format=LAST))
    text = str(opswap.explain(model, images()))
    assert "group_norm" in text and "ran" in text
    assert "group_norm" in str(opswap.explain(model, images().contiguous()))
    opswap.unswap(model)
    opswap.reset_stats()
    model(images())
    assert not kernels("group_norm")


def test_compiled_graphs() -> None:
    torch._dynamo.reset()
    for make in (UNet, Style, Calls):
        stock = make().to(memory_format=LAST)
        x = images()
        opswap.reset_stats()
        compiled = torch.compile(copy.deepcopy(stock), backend="opswap")
        torch.testing.assert_close(compiled(x), stock(x), rtol=1e-4, atol=1e-4)
        assert kernels("group_norm")


@pytest.mark.parametrize("make", [lambda: nn.GroupNorm(4, 16), lambda: nn.InstanceNorm2d(16, affine=True)])
@pytest.mark.parametrize("size", [8, 32])
def test_ensembles_under_vmap(
    size: int, make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other layers of a swapped model keep channels_last there, which torch's function refuses, of any size."""
    monkeypatch.undo()
    stock = nn.Sequential(nn.Conv2d(8, 16, 1), nn.ChannelShuffle(4), make()).eval()
    model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
    stock.to(memory_format=LAST)
    x = torch.randn(4, 8, size, size).to(memory_format=LAST)
    parameters, buffers = torch.func.stack_module_state([model, model])
    call = torch.func.vmap(lambda p, b: torch.func.functional_call(model, (p, b), (x,)))
    torch.testing.assert_close(call(parameters, buffers), torch.stack([stock(x)] * 2), atol=1e-4, rtol=1e-4)
