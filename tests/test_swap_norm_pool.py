# SPDX-License-Identifier: MIT
"""swap on BatchNorm, activation and max pool: found in a forward and across blocks; models train as before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from counted import kernels, kernels_of
from nearness import assert_trains_as_near
from norm_act import NormAct
from opswap.swap.rules import DEFAULT
from step import outputs_and_gradients

pytestmark = pytest.mark.usefixtures("one_thread", "every_rule_applies")

JOINED = "batch_norm_max_pool"


class Net(nn.Module):
    """A convolution, which evaluation folds unless it is grouped, and what `body` makes of it."""

    def __init__(
        self, body: Callable[[Any, Tensor], Tensor], groups: int = 2, act: type[nn.Module] = nn.ReLU
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 16, 3, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.act, self.pool, self.none = act(), nn.MaxPool2d(3, 2, 1), nn.Identity()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


SPELLINGS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "modules": lambda m, x: m.pool(m.act(m.norm(m.conv(x)))),
    "functions": lambda m, x: F.max_pool2d(F.relu(m.norm(m.conv(x))), 3, stride=2, padding=1),
    "torch.max_pool2d": lambda m, x: torch.max_pool2d(torch.relu(m.norm(m.conv(x))), 2, 2),
    "method": lambda m, x: m.pool(m.norm(m.conv(x)).relu_()),
    "silu": lambda m, x: m.pool((lambda y: y * y.sigmoid())(m.norm(m.conv(x)))),
    "pairs": lambda m, x: F.max_pool2d(F.leaky_relu(m.norm(m.conv(x)), 0.1), (2, 3), [2, 1], ceil_mode=True),
    "without activation": lambda m, x: m.pool(m.norm(m.conv(x))),
    "identity": lambda m, x: m.pool(m.act(m.none(m.norm(m.conv(x))))),
    "function of a normalisation": lambda m, x: m.pool(
        F.relu(
            F.batch_norm(
                m.conv(x),
                m.norm.running_mean,
                m.norm.running_var,
                m.norm.weight,
                m.norm.bias,
                True,
                0.1,
                1e-5,
            )
        )
    ),
}


def swapped(stock: nn.Module, **options: Any) -> nn.Module:
    return opswap.swap(copy.deepcopy(stock), **options)


def images(size: int = 16) -> Tensor:
    return torch.randn(3, 6, size, size)


def assert_same(model: nn.Module, stock: nn.Module, x: Tensor) -> None:
    """In float64: of two nearly equal values a pool may choose another one after another rounding."""
    got, want = (outputs_and_gradients(m.double(), x.double()) for m in (model, stock))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    for m in (model, stock):
        m.float()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", SPELLINGS)
def test_found(name: str, groups: int) -> None:
    """In training in one pass; in evaluation too, unless the convolution is folded."""
    stock = Net(SPELLINGS[name], groups)
    model, x = swapped(stock), images()
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert kernels(JOINED) == 1 and opswap.stats()["original"] == {}
    for m in (model, stock):
        m.eval()
    opswap.reset_stats()
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
    trains = name == "function of a normalisation"
    assert kernels(JOINED) == (groups == 2 or trains or kernels("conv_chain") == 0)
    assert opswap.stats()["original"] == {}


def test_report() -> None:
    model = swapped(Net(SPELLINGS["modules"]))
    assert [(s.rule, s.path) for s in opswap.report(model).swapped] == [("batch_norm_act_max_pool", "norm")]
    exact = swapped(Net(SPELLINGS["modules"]), exact=True)
    assert [(s.rule, s.path) for s in opswap.report(exact).swapped] == [("max_pool2d", "pool")]
    chosen = swapped(
        Net(SPELLINGS["modules"]), rules=[r for r in DEFAULT if r.name in ("batch_norm_act", "max_pool2d")]
    )
    assert [s.rule for s in opswap.report(chosen).swapped] == ["batch_norm_act", "max_pool2d"]


def block(inside: int, outside: int) -> nn.Sequential:
    convolution = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU(inplace=True))


class Calls(nn.Module):
    """Blocks and pools in turn, as ShuffleNetV2's first layers and VGG's stages."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool1 = block(6, 16), nn.MaxPool2d(3, 2, 1)
        self.conv2, self.pool2 = nn.Sequential(block(16, 16), block(16, 24)), nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool2(self.conv2(self.pool1(self.conv1(x))))


BLOCKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "calls": (Calls, 2),
    "sequential": (lambda: nn.Sequential(block(6, 16), nn.MaxPool2d(2), block(16, 24), nn.MaxPool2d(2)), 2),
    "flat": (lambda: nn.Sequential(*block(6, 16), nn.MaxPool2d(2), *block(16, 24), nn.MaxPool2d(2)), 2),
    "activation inside": (
        lambda: nn.Sequential(nn.Conv2d(6, 16, 3, bias=False), NormAct(16), nn.MaxPool2d(2)),
        1,
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_across_blocks(name: str) -> None:
    make, count = BLOCKS[name]
    stock = make()
    model, x = swapped(stock), images()
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert kernels(JOINED) == count, opswap.report(model)
    assert set(model.state_dict()) == set(stock.state_dict())
    opswap.unswap(model)
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert kernels() == 0


@pytest.mark.parametrize("training", [True, False])
def test_convolution_called_twice(training: bool) -> None:
    """The pool runs once, behind the last of both calls."""
    conv = nn.Conv2d(16, 16, 1)
    layers = (conv, nn.BatchNorm2d(16), nn.ReLU(), conv, nn.BatchNorm2d(16), nn.ReLU())
    stock = nn.Sequential(*layers, nn.MaxPool2d(2)).train(training)
    model, x = swapped(stock), torch.randn(2, 16, 8, 8)
    assert_same(model, stock, x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)


def test_shufflenet() -> None:
    model = swapped(opswap.models.shufflenet_v2_x0_5(num_classes=4), memory_format=torch.channels_last)
    opswap.reset_stats()
    model(torch.randn(2, 3, 64, 64)).sum().backward()
    assert (kernels(JOINED), kernels(f"{JOINED}_backward"), kernels("max_pool")) == (1, 1, 0)


def _relu_is_kept(m: Any, x: Tensor) -> Tensor:
    y = m.act(m.norm(m.conv(x)))
    return m.pool(y).mean((2, 3)) + y.mean((2, 3))


def _written_between(m: Any, x: Tensor) -> Tensor:
    y = m.act(m.norm(m.conv(x)))
    y.mul_(2)
    return m.pool(y)


APART: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "the activation is read elsewhere": _relu_is_kept,
    "a product is between": lambda m, x: m.pool(m.act(m.norm(m.conv(x))) * 2),
    "it is written to": _written_between,
    "indices": lambda m, x: F.max_pool2d(m.act(m.norm(m.conv(x))), 2, return_indices=True)[0],
    "another pool": lambda m, x: F.avg_pool2d(m.act(m.norm(m.conv(x))), 2),
    "a size is computed": lambda m, x: F.max_pool2d(m.act(m.norm(m.conv(x))), x.size(2) // 8),
}


@pytest.mark.parametrize("name", APART)
def test_left_apart(name: str) -> None:
    stock = Net(APART[name], act=nn.SiLU)
    model, x = swapped(stock, example_inputs=(images(),)), images()
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert kernels(JOINED) == 0


def _hooked(model: Any) -> None:
    model.pool.register_forward_hook(lambda *_: None)


def _indices(model: Any) -> None:
    model.pool.return_indices = True


def _another_class(model: Any) -> None:
    model.pool = nn.AvgPool2d(3, 2, 1)


def _another_activation(model: Any) -> None:
    model.act.__class__ = nn.Tanh


@pytest.mark.parametrize("change", [_hooked, _another_class, _another_activation])
@pytest.mark.parametrize("groups", [1, 2])
def test_changed_later(change: Callable[[Any], None], groups: int) -> None:
    """The original forward runs then."""
    stock = Net(SPELLINGS["modules"], groups)
    model, x = swapped(stock), images()
    for m in (model, stock):
        change(m)
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert kernels(JOINED) == 0


def test_indices_later() -> None:
    stock = Net(SPELLINGS["modules"])
    model, x = swapped(stock), images()
    for m in (model, stock):
        _indices(m)
    got, want = model(x), stock(x)
    assert isinstance(got, tuple) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("groups", [1, 2])
def test_options_are_read_in_each_call(groups: int) -> None:
    stock = Net(SPELLINGS["modules"], groups)
    model, x = swapped(stock), images()
    for m in (model, stock):
        m.pool.kernel_size, m.pool.stride, m.pool.padding, m.pool.ceil_mode = (2, 3), 2, 0, True
        m.norm.eps, m.norm.momentum = 1e-2, None
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert kernels(JOINED) == 1
    torch.testing.assert_close(model.norm.running_var, stock.norm.running_var)
    assert model.norm.num_batches_tracked == stock.norm.num_batches_tracked


def test_frozen_normalisation_in_training() -> None:
    """Given statistics, and a graph."""
    stock = Net(SPELLINGS["modules"])
    stock.norm.eval()
    model, x = swapped(stock), images()
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert kernels(JOINED) == kernels(f"{JOINED}_backward") == 1


def test_trains_as_near() -> None:
    torch.manual_seed(0)
    stock = nn.Sequential(Calls(), nn.Flatten(), nn.Linear(24 * 16, 4))
    assert_trains_as_near(swapped(stock), stock, images)


def test_frozen_model() -> None:
    """In evaluation a folded convolution comes first, and the pool behind it; a replay gives the same."""
    stock = Calls().eval()
    model, x = opswap.freeze(swapped(stock)), images()
    with torch.no_grad():
        want = stock(x)
        for _ in range(4):
            torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)
        for m in (model, stock):
            m.pool2.kernel_size, m.pool2.stride = 4, 3
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)


def test_compiled() -> None:
    stock = Net(SPELLINGS["modules"])
    model, x = swapped(stock), images()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_same(compiled, stock, x)
    exported = torch.export.export(model.eval(), (x,)).module()
    torch.testing.assert_close(exported(x), stock.eval()(x), rtol=1e-4, atol=1e-5)


def test_explained() -> None:
    model = swapped(Net(SPELLINGS["modules"]))
    text = str(opswap.explain(model, images()))
    assert "batch_norm_act_max_pool" in text and "ran" in text
    model.pool.register_forward_hook(lambda *_: None)
    text = str(opswap.explain(model, images()))
    assert "original" in text and "hooks" in text


def test_kept_in_pieces() -> None:
    """deepcopy and pickle keep the pass in one."""
    model, x = swapped(Calls()), images()
    for copied in (copy.deepcopy(model), copy.copy(model)):
        kernels_of(copied, x)
        assert kernels(JOINED) == 2


@pytest.mark.parametrize("as_module", [False, True])
def test_large_windows_of_contiguous_images_are_torchs(as_module: bool) -> None:
    def body(net: Any, x: Tensor) -> Tensor:
        y = net.act(net.norm(net.conv(x)))
        return net.pool(y) if as_module else F.max_pool2d(y, 8)

    stock = Net(body)
    stock.pool = nn.MaxPool2d((8, 8))
    model = swapped(stock, rules=[r for r in DEFAULT if r.name == "batch_norm_act_max_pool"])
    assert kernels_of(model, images(), JOINED) == 0
    assert "large windows" in str(opswap.explain(model, images()))
    model.to(memory_format=torch.channels_last)
    assert kernels_of(model, images().contiguous(memory_format=torch.channels_last), JOINED) == 1
