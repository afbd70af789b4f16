# SPDX-License-Identifier: MIT
"""Code of a user that stands in for torch's functions: a subclass of Tensor, or a TorchFunctionMode.

A swapped model asks it about the same functions as the stock one, in the same order.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
from modes import Calls
from opswap._torch import functions_overridden
from opswap.models import LPRNet, ShuffleNetV2
from step import saved_by


class Told(Tensor):
    """Lists what it is asked about."""

    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(f"{getattr(func, '__module__', None)}.{getattr(func, '__name__', func)}")
        return super().__torch_function__(func, types, args, kwargs or {})


class Doubled(Tensor):
    """Doubles what torch's functions with a kernel of opswap return, and knows no other library's functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (getattr(func, "__module__", None) or "").startswith("opswap"):
            return NotImplemented
        result = super().__torch_function__(func, types, args, kwargs or {})
        twice = (
            F.max_pool2d,
            F.avg_pool2d,
            F.batch_norm,
            F.dropout,
            F.group_norm,
            F.layer_norm,
            torch.conv2d,
        )
        return result * 2 if func in twice or getattr(func, "__name__", "") == "max_pool2d" else result


class Alike(Tensor):
    """Nothing of its own."""


class Shuffled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Functions(nn.Module):
    """Calls of functions that rules find."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(16, 16, 1, 1))
        self.deep = nn.Parameter(torch.randn(16, 1, 3, 3))
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(F.conv2d(F.conv2d(x, self.one), self.deep, None, 1, 1, 1, 16)))
        x = F.group_norm(F.max_pool2d(x, 3, 2, 1), 4)
        return F.dropout(F.layer_norm(x, (x.shape[3],)), 0.3, self.training)


def chain() -> nn.Module:
    parts: list[nn.Module] = [nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    parts += [nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16)]
    return nn.Sequential(*parts, nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "max pool": lambda: nn.MaxPool2d(3, 2, 1),
    "average pool": lambda: nn.AvgPool2d(3, 2, 1),
    "adaptive pool": lambda: nn.AdaptiveMaxPool2d(1),
    "BatchNorm": lambda: nn.BatchNorm2d(16),
    "BatchNorm and ReLU": lambda: nn.Sequential(nn.BatchNorm2d(16), nn.ReLU()),
    "GroupNorm": lambda: nn.GroupNorm(4, 16),
    "InstanceNorm": lambda: nn.InstanceNorm2d(16),
    "LayerNorm": lambda: nn.LayerNorm(28),
    "dropout": lambda: nn.Dropout(0.3),
    "shuffle": lambda: nn.ChannelShuffle(4),
    "shuffle by view": Shuffled,
    "1 x 1": lambda: nn.Conv2d(16, 16, 1),
    "depthwise": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
    "dense": lambda: nn.Conv2d(16, 16, 3, padding=1),
    "linear in 16 bits": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 8)),
    "chain": chain,
    "chain after a pool": lambda: nn.Sequential(nn.MaxPool2d(2), chain()),
    "functions": Functions,
}
FORMATS = [torch.contiguous_format, torch.channels_last]
every_model = pytest.mark.parametrize("name", MODELS)
every_format = pytest.mark.parametrize("memory_format", FORMATS)


def pair(name: str, memory_format: torch.memory_format, dtype: torch.dtype = torch.float32) -> Any:
    """A stock model, the same swapped, and an input large enough for every rule."""
    torch.manual_seed(0)
    stock = MODELS[name]().to(dtype, memory_format=memory_format)
    x = torch.randn(12, 16, 28, 28).to(dtype, memory_format=memory_format)
    return stock, opswap.swap(copy.deepcopy(stock)), x


@every_format
@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("training", [True, False])
def test_a_subclass_is_asked_as_by_the_stock_model(
    name: str, memory_format: torch.memory_format, dtype: torch.dtype, training: bool
) -> None:
    stock, model, x = pair(name, memory_format, dtype)
    asked, outputs = [], []
    for m in (stock, model):
        m.train(training)
        Told.calls.clear()
        torch.manual_seed(1)
        outputs.append(m(x.as_subclass(Told)))
        asked.append([*Told.calls])
    assert type(outputs[1]) is type(outputs[0])
    assert asked[1] == asked[0] and torch.equal(*(y.detach().as_subclass(Tensor) for y in outputs))


@every_format
@every_model
def test_a_mode_sees_what_the_stock_model_calls(name: str, memory_format: torch.memory_format) -> None:
    stock, model, x = pair(name, memory_format)
    seen, outputs = [], []
    for m in (stock, model):
        torch.manual_seed(1)
        with Calls() as mode, torch.device("cpu"):
            outputs.append(m(x))
        seen.append(mode.seen)
    assert seen[1] == seen[0] and torch.equal(*outputs)


@every_format
@every_model
def test_a_meaning_of_its_own(name: str, memory_format: torch.memory_format) -> None:
    stock, model, x = pair(name, memory_format)
    results = []
    for m in (stock, model):
        torch.manual_seed(1)
        marked = x.clone().requires_grad_()
        output = m(marked.as_subclass(Doubled))
        output.as_subclass(Tensor).square().sum().backward()
        results.append([output.detach().as_subclass(Tensor), marked.grad, *(p.grad for p in m.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@every_format
def test_a_parameter_of_a_subclass(memory_format: torch.memory_format) -> None:
    """The functions that get it are asked about, those of opswap never."""
    stock, model, x = pair("functions", memory_format)
    asked, outputs = [], []
    for m in (stock.eval(), model.eval()):
        for name in ("one", "deep"):
            setattr(m, name, nn.Parameter(getattr(m, name).detach().as_subclass(Told)))
        Told.calls.clear()
        outputs.append(m(x))
        asked.append([*Told.calls])
    assert asked[1] == asked[0] and torch.equal(*(y.detach().as_subclass(Tensor) for y in outputs))


def saved(model: nn.Module, x: Tensor) -> list[tuple[Any, ...]]:
    """Sizes and dtypes of what the graph of a call keeps."""
    return [(*t.shape, t.dtype) for t in saved_by(lambda: model(x))]


@every_format
@every_model
@pytest.mark.parametrize("images", [0, 1, 12])
def test_the_graph_is_the_same_where_subclasses_may_not_override(
    images: int, name: str, memory_format: torch.memory_format
) -> None:
    """As in the backward of a subclass, in which a checkpoint runs the forward again."""
    _, model, x = pair(name, memory_format)
    if images == 0 and name == "linear in 16 bits":
        return  # torch's pool refuses it
    x = x[:images].contiguous(memory_format=memory_format).requires_grad_()
    first = saved(model, x.as_subclass(Alike))
    with torch._C.DisableTorchFunctionSubclass():
        assert saved(model, x.as_subclass(Alike)) == first and saved(model, x) == first


@pytest.mark.parametrize("kind", [Alike, Told])
@pytest.mark.parametrize("needs_grad", [False, True])
@every_model
def test_checkpoints(name: str, needs_grad: bool, kind: type[Tensor]) -> None:
    stock, model, x = pair(name, torch.channels_last)
    if name in ("GroupNorm", "functions") and not needs_grad:
        return  # torch 2.13 ends the process, see test_ways_to_record
    gradients = []
    for m in (stock, model):
        torch.manual_seed(1)
        marked = x.clone().as_subclass(kind).requires_grad_(needs_grad)
        output = checkpoint(nn.Sequential(nn.Identity(), m), marked, use_reentrant=False)
        if output.requires_grad:
            output.square().sum().backward()
        gradients.append([p.grad for p in (marked, *m.parameters())])
    for a, b in zip(*gradients, strict=True):
        assert a is None if b is None else torch.equal(a.as_subclass(Tensor), b.as_subclass(Tensor))


@pytest.mark.parametrize("make", [lambda: ShuffleNetV2(num_classes=5), lambda: LPRNet(10)])
def test_networks(make: Callable[[], nn.Module]) -> None:
    stock = make().eval()
    model = opswap.swap(copy.deepcopy(stock))
    x = torch.randn(2, 3, 64, 64) if isinstance(stock, ShuffleNetV2) else torch.randn(2, 3, 24, 94)
    asked = []
    for m in (stock, model):
        Told.calls.clear()
        m(x.as_subclass(Told))
        asked.append([*Told.calls])
    assert asked[1] == asked[0]


def test_modes_of_torch_change_nothing() -> None:
    assert not functions_overridden()
    with torch.device("cpu"):
        assert not functions_overridden()
        with Calls():
            assert functions_overridden()
    with torch._C.DisableTorchFunctionSubclass():
        assert functions_overridden()


def test_the_reason_is_told(caplog: pytest.LogCaptureFixture) -> None:
    _, model, x = pair("BatchNorm", torch.channels_last)
    outer = nn.Sequential(model)
    with Calls():
        table = str(opswap.explain(outer, x))
    assert "TorchFunctionMode" in table
    with caplog.at_level(logging.INFO, "opswap"):
        model(x.as_subclass(Told))
    assert "the input is a Told" in caplog.text


def _raises(input: Tensor) -> None:
    raise ValueError("the check of the instance")


@pytest.mark.parametrize(
    "window", [{"kernel_size": 1}, {"kernel_size": 3, "padding": 1}, {"kernel_size": 3, "groups": 32}]
)
@pytest.mark.parametrize("chain", [True, False])
def test_the_computation_of_a_convolution_is_replaced(window: dict[str, int], chain: bool) -> None:
    x = torch.randn(4, 32, 32, 32).contiguous(memory_format=torch.channels_last)
    rest = (nn.BatchNorm2d(32), nn.ReLU()) if chain else ()
    stock = nn.Sequential(nn.Identity(), nn.Conv2d(32, 32, **window), *rest).eval()
    stock.to(memory_format=torch.channels_last)
    model = opswap.swap(copy.deepcopy(stock))
    for m in (stock, model):
        m[1]._conv_forward = lambda input, weight, bias: input * 2
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x))
    torch.testing.assert_close(model(x), stock(x))


@pytest.mark.parametrize("training", [True, False])
def test_the_check_of_a_norm_is_replaced(training: bool) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()).train(training)
    opswap.swap(model)
    model[1]._check_input_dim = _raises
    with pytest.raises(ValueError, match="check of the instance"), torch.no_grad():
        model(torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("replaced", [0, 1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_the_call_of_a_layer_is_replaced(training: bool, replaced: int) -> None:
    layers = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()
    stock = nn.Sequential(*layers).to(memory_format=torch.channels_last).train(training)
    model = opswap.swap(copy.deepcopy(stock))
    x = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    for m in (stock, model):
        m(x)
        m[replaced]._call_impl = lambda input: input * 2
    for _ in range(2):
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)
    # A convolution in a forward of its own is called, or not.
    assert replaced == 0 or "_call_impl was replaced" in str(opswap.explain(model, x))


@pytest.mark.parametrize("training", [True, False])
def test_statistics_that_require_a_gradient(training: bool) -> None:
    stock = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()).train(training)
    model, x = opswap.swap(copy.deepcopy(stock)), torch.randn(2, 8, 6, 6)
    for m in (stock, model):
        m[1].running_mean.requires_grad_()
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)
    for m in (stock, model):
        with pytest.raises(RuntimeError, match="not differentiable"):
            m(x)
