# SPDX-License-Identifier: MIT
"""Functions and layers of torch that somebody replaces after a swap: what the stock forward then runs, runs."""

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


class Functions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(12)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(x))
        y = torch.cat([x, x * 2], 1)
        y = torch.transpose(y.unflatten(1, (2, 12)), 1, 2).flatten(1, 2)
        return F.max_pool2d(y, 2) + torch.max_pool2d(y, 2)


def layers() -> nn.Module:
    wide = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(12, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), wide),
        nn.BatchNorm2d(16),
        nn.Hardswish(),
        nn.ChannelShuffle(2),
        nn.MaxPool2d(2),
    )


def alone(kind: type[nn.Module], *args: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Identity(), kind(*args))


def threefold(first: Any, *_: Any, **__: Any) -> Tensor:
    return (first[0] if isinstance(first, list) else first) * 3


def own(_: nn.Module, x: Tensor) -> Tensor:
    return x * 5


def thinned(_: Any, x: Tensor) -> Tensor:
    return x[:, :, ::2, ::2]


def doubled(self: Any, x: Tensor) -> Tensor:
    return torch.cat([x, x], 1)[:, : self.out_channels]


def joined(tensors: list[Tensor], dim: int) -> Tensor:
    return tensors[0].repeat_interleave(2, dim)


def every_second(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x[:, :, ::2, ::2]


FUNCTIONS = [
    (F, "relu", threefold),
    (torch, "cat", joined),
    (torch, "transpose", lambda x, i, j: x.transpose(i, j) * 2),
    (F, "max_pool2d", every_second),
    (torch, "max_pool2d", every_second),
]
LAYERS = [
    (nn.ReLU, own),
    (nn.BatchNorm2d, own),
    (nn.modules.batchnorm._BatchNorm, own),
    (nn.Conv2d, doubled),
    (nn.Hardswish, own),
    (nn.ChannelShuffle, own),
    (nn.MaxPool2d, thinned),
    (nn.Sequential, own),
]


def assert_same(model: nn.Module, stock: nn.Module, x: Tensor) -> None:
    model.load_state_dict(stock.state_dict())
    torch.testing.assert_close(model(x), stock(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("module", "name", "mine"), FUNCTIONS, ids=[f"{m.__name__}.{n}" for m, n, _ in FUNCTIONS]
)
def test_functions(
    module: Any, name: str, mine: Any, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, x = Functions().train(training), torch.randn(2, 12, 6, 6)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    assert any(s.path == "" for s in opswap.report(model).swapped)
    assert_same(model, stock, x)
    monkeypatch.setattr(module, name, mine)
    assert_same(model, stock, x)
    monkeypatch.undo()
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert "Functions" not in opswap.stats()["original"]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [layers, alone(nn.BatchNorm2d, 12), alone(nn.ChannelShuffle, 2)])
@pytest.mark.parametrize(("cls", "forward"), LAYERS, ids=[c.__name__ for c, _ in LAYERS])
@pytest.mark.parametrize("last", [False, True])
def test_layers(
    cls: Any, forward: Any, make: Any, training: bool, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, x = make().train(training), torch.randn(2, 12, 6, 6)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    model = opswap.swap(copy.deepcopy(stock))
    assert opswap.report(model).swapped
    assert_same(model, stock, x)
    monkeypatch.setattr(cls, "forward", forward)
    assert_same(model, stock, x)


def test_pickles_watch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, x = Functions().eval(), torch.randn(2, 12, 6, 6)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    model = pickle.loads(pickle.dumps(model))
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert "Functions" not in opswap.stats()["original"]
    monkeypatch.setattr(F, "relu", threefold)
    assert_same(model, stock, x)


def test_compiled_and_exported() -> None:
    stock, x = Functions().eval(), torch.randn(2, 12, 6, 6)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), stock(x))
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), stock(x))


def test_a_trace_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.fx replaces functions of torch by its own while it traces, for the whole process: they do the same."""
    stock, x = Functions().eval(), torch.randn(2, 12, 6, 6)
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,))
    traced = torch.fx._symbolic_trace._create_wrapped_func
    monkeypatch.setattr(torch, "cat", traced(traced(torch.cat)))
    opswap.reset_stats()
    assert_same(model, stock, x)
    assert not opswap.stats()["original"]
    monkeypatch.setattr(torch, "cat", traced(lambda tensors, dim: torch.concat(tensors, dim) * 5))
    assert_same(model, stock, x)
    assert opswap.stats()["original"]
