# SPDX-License-Identifier: MIT
"""Depthwise convolutions of 16 bits as a function, under autocast, and in swapped models."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import opswap
from counted import counts
from depthwise_cases import HALVES, LAST, assert_near, make, stock
from inputs import layout_of
from opswap import functional as F
from opswap.ops import reduced_precision
from opswap.ops.depthwise import depthwise_able, depthwise_wins
from threads import same_on_any_threads

pytestmark = pytest.mark.skipif(not depthwise_wins(), reason="the tiers of this CPU have no kernels for it")
BOTH = {"depthwise_conv2d": 1, "depthwise_conv2d_backward": 1}


@pytest.fixture(params=HALVES, ids=["bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a CPU with instructions for 16 bits."""
    monkeypatch.setattr(reduced_precision, "SLOW", frozenset())
    yield


def results(output: Tensor, leaves: list[Tensor], grad: Tensor) -> list[Tensor]:
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


@pytest.mark.parametrize("window", [(1, 1, 1), (2, 1, 1), (1, 2, 2), (2, (2, 0), 1)])
@pytest.mark.parametrize("k", [3, 5, (1, 7)])
def test_public_function(dtype: torch.dtype, k: Any, window: tuple[Any, ...]) -> None:
    leaves = [t.detach().to(dtype).requires_grad_() for t in make(2, 12, 9, 11, k)]
    for function in (F.depthwise_conv2d, lambda *t: F.conv2d(*t, 12)):
        opswap.reset_stats()
        output = function(*leaves, *window)
        grad = torch.randn_like(output)
        found = results(output, leaves, grad)
        assert counts() == (BOTH, {})
        assert_near(found, leaves, grad, *window)
        wide = [t.detach().float().requires_grad_() for t in leaves]
        for ours, theirs in zip(found, results(stock(*wide, *window), wide, grad.float()), strict=True):
            assert layout_of(ours) == layout_of(theirs)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("inside", [False, True], ids=["of 16 bits", "under autocast"])
def test_padding_in_words(dtype: torch.dtype, padding: str, inside: bool) -> None:
    leaves = [
        t.detach().to(torch.float32 if inside else dtype).requires_grad_() for t in make(2, 12, 9, 11, 5)
    ]
    for function in (F.depthwise_conv2d, lambda *t, **options: F.conv2d(*t, groups=12, **options)):
        found = []
        for given in (padding, 2 if padding == "same" else 0):
            opswap.reset_stats()
            with torch.autocast("cpu", dtype, enabled=inside):
                output = function(*leaves, padding=given)
            found.append(results(output, leaves, torch.ones_like(output)))
            assert counts() == (BOTH, {})
        for word, number in zip(*found, strict=True):
            assert torch.equal(word, number)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("wide", [False, True], ids=["of 16 bits", "of 32"])
def test_autocast(dtype: torch.dtype, wide: bool, stride: int) -> None:
    """Images are rounded to 16 bits, parameters in float32 are not; gradients have the dtypes of their tensors."""
    x, w, b = make(2, 12, 9, 11)
    leaves = [x.detach().to(torch.float32 if wide else dtype).requires_grad_(), w, b]
    for function in (F.depthwise_conv2d, lambda *t: F.conv2d(*t, 1, 12)):
        opswap.reset_stats()
        with torch.autocast("cpu", dtype):
            output = function(*leaves, stride, 1)
            assert torch.is_autocast_enabled("cpu")
        grad = torch.randn_like(output)
        found = results(output, leaves, grad)
        assert counts() == (BOTH, {}) and [t.dtype for t in found[1:]] == [t.dtype for t in leaves]
        found[1] = found[1].to(dtype)  # what the kernel gives, exactly
        assert_near(found, [leaves[0].to(dtype), w, b], grad, stride, 1)


def test_backward_inside_autocast_and_again(dtype: torch.dtype) -> None:
    x, w, _ = make(2, 12, 6, 6)
    opswap.reset_stats()
    with torch.autocast("cpu", dtype):
        output = F.depthwise_conv2d(x, w, None, 1, 1)
        grad = torch.randn_like(output)
        inside = torch.autograd.grad(output, (x, w), grad, retain_graph=True)
        assert counts() == (BOTH, {})
        twice = torch.autograd.grad(output, (x, w), grad, create_graph=True)
    assert {t.dtype for t in (*inside, *twice)} == {torch.float32}
    torch.testing.assert_close(twice[0], inside[0], rtol=2e-2, atol=2e-2)  # rounded to 16 bits
    torch.testing.assert_close(twice[1], inside[1], rtol=1e-4, atol=1e-4)
    again = torch.autograd.grad(twice[0].sum() + twice[1].sum(), (x, w))
    exact = [t.detach().double().requires_grad_() for t in (x, w)]
    first = torch.autograd.grad(stock(*exact, None, 1, 1), exact, grad.double(), create_graph=True)
    for a, b in zip(again, torch.autograd.grad(first[0].sum() + first[1].sum(), exact), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=5e-2, atol=2e-1)


def test_a_weight_may_change_before_the_backward(dtype: torch.dtype) -> None:
    """As under torch's autocast, which keeps a copy."""
    x, w, _ = make(2, 12, 6, 6)
    with torch.autocast("cpu", dtype):
        output = F.depthwise_conv2d(x, w, None, 1, 1)
    (expected,) = torch.autograd.grad(output.float().sum(), x, retain_graph=True)
    with torch.no_grad():
        w.zero_()
    assert torch.equal(torch.autograd.grad(output.float().sum(), x)[0], expected)


def test_what_stays_torchs(dtype: torch.dtype) -> None:
    x, w, b = (t.detach() for t in make(2, 12, 6, 6))
    for tensors in ((x.to(dtype), w), (x, w.to(dtype))):
        with pytest.raises(RuntimeError, match=r"should be the same|expected"):
            F.depthwise_conv2d(*tensors)
    layer = nn.Conv2d(12, 12, 3, groups=12)
    assert not depthwise_able(layer, x.to(dtype)) and depthwise_able(layer, x)
    with torch.autocast("cpu", dtype):
        assert depthwise_able(layer, x) and depthwise_able(layer, x.to(dtype))
        assert not depthwise_able(layer, x.double())
        assert depthwise_able(layer, x.contiguous()) and not depthwise_able(
            layer, x.contiguous().transpose(2, 3)
        )
        assert not depthwise_able(layer, x[:, :4])
        opswap.reset_stats()
        wide = F.depthwise_conv2d(x.double(), w.double(), b.double())
        assert wide.dtype is torch.float64 and counts() == ({"depthwise_conv2d": 1}, {})
        torch.testing.assert_close(wide, stock(x.double(), w.double(), b.double(), 1, 0))
        assert not depthwise_able(copy.deepcopy(layer).to(dtype), x)
        assert torch.equal(F.depthwise_conv2d(x, w.to(dtype)), T.conv2d(x, w.to(dtype), groups=12))
        with opswap.force_reference():
            assert not depthwise_able(layer, x)


def test_without_a_graph(dtype: torch.dtype) -> None:
    x, w, b = make(2, 12, 6, 6)
    with torch.autocast("cpu", dtype):
        expected = F.depthwise_conv2d(x, w, b).detach()
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                result = F.depthwise_conv2d(x, w, b)
                assert torch.equal(result, expected) and not result.requires_grad


def test_bits_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    x, w, b = make(8, 24, 19, 20)

    def run() -> list[Tensor]:
        with torch.autocast("cpu", dtype):
            output = F.depthwise_conv2d(x, w, b, 2, 1)
        return results(output, [x, w, b], torch.ones_like(output))

    same_on_any_threads(run)


def test_graphs_record_the_operator(dtype: torch.dtype) -> None:
    x, w, b = (t.detach().to(dtype) for t in make(2, 12, 6, 6))
    graph = make_fx(lambda *t: F.depthwise_conv2d(*t, 2, 1))(x, w, b)
    assert torch.ops.opswap.depthwise_conv2d.default in {node.target for node in graph.graph.nodes}
    assert torch.equal(graph(x, w, b), F.depthwise_conv2d(x, w, b, 2, 1))


def branch() -> nn.Sequential:
    """As in ShuffleNetV2, and a depthwise convolution alone. No ReLU, whose gradient jumps where 16 bits round to 0."""
    return nn.Sequential(
        nn.Conv2d(24, 24, 3, 2, 1, groups=24, bias=False),
        nn.BatchNorm2d(24),
        nn.Conv2d(24, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.Conv2d(32, 32, 5, 1, 2, groups=32),
    )


@pytest.mark.usefixtures("every_rule_applies", "native")
@pytest.mark.parametrize("inside", [False, True], ids=["swapped before", "swapped under autocast"])
def test_swapped_models(dtype: torch.dtype, inside: bool) -> None:
    """Alone, and as a part of a chain that runs part by part where the CPU computes 16 bits fast."""
    original = branch()
    with torch.autocast("cpu", dtype, enabled=inside):
        model = opswap.swap(copy.deepcopy(original), memory_format=LAST)
    x = torch.randn(4, 24, 13, 14).contiguous(memory_format=LAST)
    weight = torch.randn(4, 32, 7, 7, dtype=torch.float64)

    def step(model: nn.Module, casts: bool = True) -> list[Tensor]:
        """Output and gradients of all parameters."""
        opswap.reset_stats()
        with torch.autocast("cpu", dtype, enabled=casts):
            output = model(x if casts else x.double())
        (output * weight.to(output.dtype)).sum().backward()
        return [output.detach(), *(p.grad for p in model.parameters())]

    ours = step(model)
    assert counts()[0]["depthwise_conv2d"] == counts()[0]["depthwise_conv2d_backward"] == 2
    assert ours[0].dtype is dtype and {t.dtype for t in ours[1:]} == {torch.float32}
    truth, theirs = step(copy.deepcopy(original).double(), False), step(original)
    off, stock_off = (
        [(a.double() - t).norm() / (1 + t.norm()) for a, t in zip(found, truth, strict=True)]
        for found in (ours, theirs)
    )
    assert sum(off) <= 2 * sum(stock_off)


@pytest.mark.usefixtures("every_rule_applies", "native")
def test_a_model_of_16_bits(dtype: torch.dtype) -> None:
    original = branch()
    model = opswap.swap(copy.deepcopy(original).to(dtype), memory_format=LAST)
    x = torch.randn(4, 24, 13, 14).contiguous(memory_format=LAST)
    opswap.reset_stats()
    output = model(x.to(dtype))
    output.float().sum().backward()
    assert counts()[0]["depthwise_conv2d"] == counts()[0]["depthwise_conv2d_backward"] == 2
    assert {p.grad.dtype for p in model.parameters()} == {dtype}
    torch.testing.assert_close(output.double(), original.double()(x.double()), rtol=1e-1, atol=1e-1)
