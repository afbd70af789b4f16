# SPDX-License-Identifier: MIT
"""Chains whose convolutions are in blocks of their own: torchvision's Conv2dNormActivation, pytorchcv's ConvBlock."""

from __future__ import annotations

import copy
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from counted import chains
from nearness import assert_model_as_near
from norm_act import NormAct, convolution
from opswap.swap.rules import DEFAULT
from replay_cases import plans
from step import assert_equal, outputs_and_gradients

LAST = torch.channels_last
RULES = [rule for rule in DEFAULT if rule.name == "conv_chain"]
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies", "fresh_counts"),
]


class Layers(nn.Sequential):
    """A convolution, its normalisation and an activation, as torchvision has them."""

    def __init__(self, channels: int, outputs: int, side: int = 1, **options: Any) -> None:
        super().__init__(convolution(channels, outputs, side, **options), nn.BatchNorm2d(outputs), nn.ReLU6())


class Block(nn.Module):
    """The same with a forward of its own, as pytorchcv and mmcv have it."""

    def __init__(self, channels: int, outputs: int, side: int = 1, acts: bool = True, **options: Any) -> None:
        super().__init__()
        self.conv, self.bn = convolution(channels, outputs, side, **options), nn.BatchNorm2d(outputs)
        self.activate = acts
        if acts:
            self.activ = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x))
        if self.activate:
            x = self.activ(x)
        return x


class Unit(nn.Module):
    """Blocks that a forward calls, and what it adds to them."""

    def __init__(self, make: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.expand, self.spatial = make(16, 48), make(48, 48, 3, groups=48)
        self.project, self.norm = convolution(48, 16), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(self.project(self.spatial(self.expand(x))))


def row(make: Callable[..., nn.Module]) -> nn.Sequential:
    """A block of MobileNetV2, of blocks and of layers."""
    return nn.Sequential(make(16, 48), make(48, 48, 3, groups=48), convolution(48, 16), nn.BatchNorm2d(16))


class Inverted(nn.Module):
    """timm's InvertedResidual."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv_pw, self.bn1 = convolution(16, 48), NormAct(48, **options)
        self.conv_dw, self.bn2 = convolution(48, 48, 3, groups=48), NormAct(48, nn.Hardswish, **options)
        self.aa, self.se = nn.Identity(), nn.Identity()
        self.conv_pwl, self.bn3 = convolution(48, 16), NormAct(16, nn.Identity, **options)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv_pw(x))
        y = self.se(self.aa(self.bn2(self.conv_dw(y))))
        return self.bn3(self.conv_pwl(y)) + x


MODELS: dict[str, Callable[[], nn.Module]] = {
    "norms inside": Inverted,
    "without parameters": lambda: Inverted(affine=False),
    "without statistics": lambda: Inverted(track_running_stats=False),
    "slower, larger eps": lambda: Inverted(momentum=0.01, eps=1e-3),
    "Sequentials": lambda: row(Layers),
    "blocks": lambda: row(Block),
    "a forward": lambda: Unit(Block),
    "a forward of Sequentials": lambda: Unit(Layers),
    "blocks alone": lambda: nn.Sequential(Block(16, 16, 3, groups=16), Block(16, 24, acts=False)),
    "layers first": lambda: nn.Sequential(
        convolution(16, 24), nn.BatchNorm2d(24), nn.Hardswish(), Layers(24, 24, 3, groups=24, stride=2)
    ),
    "two kinds": lambda: nn.Sequential(Layers(16, 32), Block(32, 32, 5, groups=32), Layers(32, 16)),
    "deeper": lambda: nn.Sequential(nn.Identity(), nn.Sequential(row(Layers), nn.Identity())),
}


def images() -> Tensor:
    return torch.randn(4, 16, 9, 9).contiguous(memory_format=LAST)


def swapped(model: nn.Module, **options: Any) -> nn.Module:
    return opswap.swap(copy.deepcopy(model), rules=RULES, **options)


@pytest.mark.parametrize("given", [False, True], ids=["", "example"])
@pytest.mark.parametrize("name", MODELS)
def test_taken(name: str, given: bool) -> None:
    stock = MODELS[name]().to(memory_format=LAST)
    options = {"example_inputs": (images(),)} if given else {}
    model = swapped(stock, **options)
    (site,) = opswap.report(model).swapped
    assert site.rule == "conv_chain" and not site.exact
    outputs_and_gradients(model, images())
    assert chains() == (1, 1)
    for buffer, b in stock.named_buffers():
        if buffer.endswith("num_batches_tracked"):
            assert b == 0 and model.get_buffer(buffer) == 1
    assert_model_as_near(swapped(stock, **options), stock, lambda: (images(),), times=4)
    assert list(opswap.unswap(model).state_dict()) == list(stock.state_dict())


def test_the_chain_goes_past_identities() -> None:
    (site,) = opswap.report(swapped(Inverted())).swapped
    assert site.path == "bn3"


@pytest.mark.parametrize("name", MODELS)
def test_copies(name: str) -> None:
    model = swapped(MODELS[name]().to(memory_format=LAST))
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    x = images()
    expected = outputs_and_gradients(model, x)
    for one in copies:
        assert_equal(outputs_and_gradients(one, x), expected)
    assert chains() == (3, 3)


def first_of(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    return next(m for m in model.modules() if isinstance(m, kind))


def count_calls(module: nn.Module) -> None:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        module.calls = getattr(module, "calls", 0) + 1

    module.register_forward_hook(hook)


def doubled(module: nn.Module) -> None:
    module.register_forward_hook(lambda m, args, output: output * 2)


def other_activation(module: nn.Module) -> None:
    setattr(module, "activ" if hasattr(module, "activ") else "2", nn.Tanh())


def tripled(self: nn.Module, x: Tensor) -> Tensor:
    return type(self).forward(self, x) * 3


def own_forward(module: nn.Module) -> None:
    module.forward = types.MethodType(tripled, module)


def one_more(module: nn.Module) -> None:
    if isinstance(module, nn.Sequential):
        module.append(nn.Tanh())
    else:
        module.activate = False


def frozen_norm(module: nn.Module) -> None:
    first_of(module, nn.BatchNorm2d).eval()


def biased(module: nn.Module) -> None:
    conv = first_of(module, nn.Conv2d)
    conv.bias = nn.Parameter(torch.linspace(-1, 1, conv.out_channels))


CHANGES = [doubled, other_activation, own_forward, one_more, frozen_norm, biased]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("make", [Layers, Block])
@pytest.mark.parametrize("unit", [row, Unit])
def test_changed_after_the_swap(
    unit: Callable[..., nn.Module], make: type[nn.Module], change: Callable[[nn.Module], None]
) -> None:
    """What happens to a block counts as in the stock model."""
    stock = unit(make).to(memory_format=LAST)
    model = swapped(stock)
    for m in (stock, model):
        change([b for b in m.modules() if type(b) is make][1])
    assert_model_as_near(model, stock, lambda: (images(),), times=4)
    assert chains()[0] == 0


@pytest.mark.parametrize("make", [Layers, Block])
@pytest.mark.parametrize("unit", [row, Unit])
@pytest.mark.parametrize("later", [False, True], ids=["before", "after"])
def test_hooks_see_the_block(unit: Callable[..., nn.Module], make: type[nn.Module], later: bool) -> None:
    stock = unit(make).to(memory_format=LAST)
    blocks = [b for b in stock.modules() if type(b) is make]
    if not later:
        count_calls(blocks[0])
    model = swapped(stock)
    block = next(b for b in model.modules() if type(b) is make)
    if later:
        count_calls(block)
    model(images())
    assert block.calls == 1


class ReadTwice(Unit):
    def forward(self, x: Tensor) -> Tensor:
        wide = self.expand(x)
        return self.norm(self.project(self.spatial(wide) + wide))


class CalledTwice(Unit):
    def forward(self, x: Tensor) -> Tensor:
        return self.spatial(self.spatial(self.expand(x)))


class Between(Unit):
    def forward(self, x: Tensor) -> Tensor:
        y = self.expand(x)
        self.spatial.bn.running_mean.mul_(0.5)
        return self.spatial(y)


@pytest.mark.parametrize("cls", [ReadTwice, CalledTwice, Between])
def test_other_forwards(cls: Callable[..., nn.Module]) -> None:
    """Whatever of it is a chain, the state and the results are those of the stock model."""
    stock = cls(Block).to(memory_format=LAST)
    assert_model_as_near(swapped(stock), stock, lambda: (images(),), times=4)
    model = swapped(stock)
    x = images()
    for m in (stock, model):
        m(x)
    for name, buffer in stock.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_evaluation(name: str) -> None:
    stock = MODELS[name]().to(memory_format=LAST)
    stock(images())
    model = swapped(stock.eval()).eval()
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
        assert chains() == (1, 0)
        opswap.freeze(model)
        for _ in range(4):
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
        if name != "without statistics":  # whose calls say that they train
            assert any(plans(m) for m in model.modules() if m._modules)
        opswap.unfreeze(model)


def new_weight(model: nn.Module) -> None:
    model.bn2.weight = nn.Parameter(torch.linspace(-1, 2, 48))


def other_statistics(model: nn.Module) -> None:
    model.bn2.running_var = torch.linspace(0.5, 2, 48)


def written_bias(model: nn.Module) -> None:
    model.bn3.bias.data.fill_(0.25)


def other_momentum(model: nn.Module) -> None:
    model.bn2.momentum = 0.5


def cumulative(model: nn.Module) -> None:
    model.bn1.momentum = None


def other_eps(model: nn.Module) -> None:
    model.bn3.eps = 0.1


def without_drop(model: nn.Module) -> None:
    model.bn1.drop = nn.Tanh()


def gate(model: nn.Module) -> None:
    model.se = nn.Sigmoid()


def hook_inside(model: nn.Module) -> None:
    doubled(model.bn2)


def hook_on_act(model: nn.Module) -> None:
    doubled(model.bn1.act)


def hook_on_convolution(model: nn.Module) -> None:
    doubled(model.conv_dw)


def one_in_evaluation(model: nn.Module) -> None:
    model.bn2.eval()


def frozen_parameters(model: nn.Module) -> None:
    model.bn2.requires_grad_(False)


INSIDE = [
    new_weight,
    other_statistics,
    written_bias,
    other_momentum,
    cumulative,
    other_eps,
    without_drop,
    gate,
]
INSIDE += [hook_inside, hook_on_act, hook_on_convolution, one_in_evaluation, frozen_parameters]


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
@pytest.mark.parametrize("change", INSIDE, ids=lambda change: change.__name__)
def test_norms_inside_change(change: Callable[[nn.Module], None], frozen: bool) -> None:
    """In evaluation first, so that folded weights are kept if they can be; then in training."""
    stock = Inverted().to(memory_format=LAST)
    stock(images())
    model = swapped(stock)
    if frozen:
        opswap.freeze(model)
    x = images()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(model.eval()(x), stock.eval()(x), rtol=1e-4, atol=1e-5)
        for m in (stock, model):
            change(m)
        for _ in range(2):
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
    for m in (stock, model):
        m.train()
        if change is one_in_evaluation:
            change(m)
    assert_model_as_near(model, stock, lambda: (images(),), times=4)
    for m in (stock, model):
        m(x)
    for name, buffer in stock.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer, rtol=1e-3, atol=1e-5)


def test_a_single_image_without_batch_raises() -> None:
    stock = Inverted()
    model = swapped(stock)
    for m in (stock, model):
        with pytest.raises(AssertionError, match=r"expected 4D input \(got 3D input\)"):
            m(torch.randn(16, 9, 9))
    for name, buffer in stock.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer)
