# SPDX-License-Identifier: MIT
"""Options, weights and classes that are changed in a swapped model, where the stock code reads them anew."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from step import outputs_and_gradients

LAST = torch.channels_last


def conv_block(cin: int, cout: int, side: int, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(cin, cout, side, padding=side // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(cout), nn.ReLU6()]


NETWORKS: dict[str, Callable[[], nn.Sequential]] = {
    "alone": lambda: nn.Sequential(nn.Conv2d(32, 32, 1), nn.Conv2d(32, 32, 3, padding=1, groups=32)),
    "joined": lambda: nn.Sequential(*conv_block(32, 32, 1), *conv_block(32, 32, 3, 32)),
    "chain": lambda: nn.Sequential(
        *conv_block(32, 32, 1), *conv_block(32, 32, 3, 32), *conv_block(32, 32, 1)
    ),
    "dense": lambda: nn.Sequential(*conv_block(32, 64, 3), *conv_block(64, 64, 3)),
}


def compare(stock: nn.Module, model: nn.Module, dtype: torch.dtype) -> None:
    """Gradients in float64 alone: in float32 rounding moves elements over the bounds of activations."""
    x = torch.randn(3, 32, 20, 20, dtype=dtype).contiguous(memory_format=LAST)
    for training in (True, False):
        stock.train(training)
        model.train(training)
        count = None if dtype is torch.float64 else 1
        ours, theirs = (outputs_and_gradients(m, x)[:count] for m in (model, stock))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(model(x), stock(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_bounds_of_a_relu6(name: str, dtype: torch.dtype, frozen: bool) -> None:
    torch.manual_seed(0)
    stock = NETWORKS[name]().to(dtype).to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock))
    compare(stock, model, dtype)
    for m in (stock, model):
        m.requires_grad_(not frozen)
        for layer in m:
            if isinstance(layer, nn.ReLU6):
                layer.min_val, layer.max_val = -0.25, 0.5
    compare(stock, model, dtype)


@pytest.mark.parametrize("sides", [(5, 5), (3, 1), (1, 3), (1, 1), (3, 3), (7, 7)], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_weights_of_another_window(name: str, sides: tuple[int, int]) -> None:
    """torch reads the weight; `kernel_size` only tells how the layer was made."""
    torch.manual_seed(0)
    stock = NETWORKS[name]().double().to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock))
    compare(stock, model, torch.float64)
    for layer, twin in zip(stock, model, strict=True):
        if isinstance(layer, nn.Conv2d):
            weight = torch.randn(*layer.weight.shape[:2], *sides, dtype=torch.float64) / 8
            layer.weight, twin.weight = nn.Parameter(weight), nn.Parameter(weight.clone())
    compare(stock, model, torch.float64)
    compare(stock.float(), model.float(), torch.float32)


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@pytest.mark.parametrize("parametrized", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_methods_that_layers_call(name: str, parametrized: bool) -> None:
    """Set on an instance, whose class torch may have made for a parametrization."""
    torch.manual_seed(0)
    stock = NETWORKS[name]().double().to(memory_format=LAST)
    model = opswap.swap(copy.deepcopy(stock))
    for m in (stock, model):
        for layer in m:
            if parametrized and hasattr(layer, "weight"):
                nn.utils.parametrize.register_parametrization(layer, "weight", Half())
    compare(stock, model, torch.float64)
    seen: list[int] = []
    for m in (stock, model):
        for layer in m:
            if isinstance(layer, nn.Conv2d):
                layer._conv_forward = lambda x, w, b, own=layer: type(own)._conv_forward(own, x * 0.75, w, b)
            elif isinstance(layer, nn.BatchNorm2d):
                layer._check_input_dim = lambda x: seen.append(x.dim())
    compare(stock, model, torch.float64)
    assert len(seen) == 8 * sum(isinstance(layer, nn.BatchNorm2d) for layer in stock)


def test_a_weight_that_is_gone() -> None:
    for name, make in NETWORKS.items():
        model = opswap.swap(make().to(memory_format=LAST))
        model[0].weight = None
        with pytest.raises(TypeError):
            model(torch.randn(3, 32, 20, 20).contiguous(memory_format=LAST))
        assert name


class Walks(nn.Module):
    """Goes through the layers in a list and a dict."""

    def __init__(self, kind: type[nn.ModuleList] = nn.ModuleList) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(32)
        self.layers = kind([nn.ReLU(), nn.Tanh()])
        self.named = nn.ModuleDict({"a": nn.Sigmoid(), "b": nn.Hardswish()})

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x).relu()
        for layer in self.layers:
            x = layer(x)
        for layer in self.named.values():
            x = layer(x)
        return x


class Twice(nn.ModuleList):
    def __iter__(self) -> Iterator[Any]:
        return iter([*super().__iter__()] * 2)


class Last(nn.ModuleDict):
    def values(self) -> Any:
        return list(super().values())[1:]


class Plain(nn.ModuleList):
    pass


def of_other_lists(model: Walks) -> None:
    model.layers.__class__ = Twice


def of_other_dicts(model: Walks) -> None:
    model.named.__class__ = Last


@pytest.mark.parametrize("change", [of_other_lists, of_other_dicts])
def test_containers_of_another_class(change: Callable[[Walks], None]) -> None:
    stock = Walks()
    model = opswap.swap(copy.deepcopy(stock))
    assert opswap.report(model).swapped
    compare(stock, model, torch.float32)
    for m in (stock, model):
        change(m)
    compare(stock, model, torch.float32)


def test_a_container_whose_class_gets_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Walks(Plain)
    model = opswap.swap(copy.deepcopy(stock))
    compare(stock, model, torch.float32)
    monkeypatch.setattr(
        Plain, "__iter__", lambda self: iter(list(self._modules.values())[::-1] * 2), raising=False
    )
    compare(stock, model, torch.float32)


@pytest.mark.parametrize(
    "hides", [staticmethod(torch.tanh), property(lambda self: torch.tanh)], ids=["function", "property"]
)
@pytest.mark.parametrize("child", ["norm", "layers"])
def test_an_attribute_of_the_class_that_hides_a_child(
    hides: Any, child: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layers = nn.BatchNorm2d(32), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(self.norm(x))

    stock = Net()
    model = opswap.swap(copy.deepcopy(stock))
    compare(stock, model, torch.float32)
    monkeypatch.setattr(Net, child, hides, raising=False)
    x = torch.randn(2, 32, 5, 5)
    torch.testing.assert_close(model(x), stock(x))
