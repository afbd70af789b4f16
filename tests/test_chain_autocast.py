# SPDX-License-Identifier: MIT
"""Chains under autocast, on CPUs that compute 16 bits slower than float32: in float32, rounded once at their end."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn

import opswap
from counted import chains, counts
from nearness import assert_model_as_near
from opswap.nn.frozen import FROZEN
from opswap.ops import conv, reduced_precision
from step import assert_equal, outputs_and_gradients
from threads import on_threads

LAST = torch.channels_last
HALVES = [torch.bfloat16, torch.float16]
pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies", "every_half_is_slow"),
]


@pytest.fixture(params=HALVES, ids=["bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


class Block(nn.Module):
    """A block of MobileNetV2, or what a model has before and after it."""

    def __init__(self, act: Callable[[], nn.Module] = nn.ReLU6) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), act()),
            *(nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), act()),
            *(nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class Cast(nn.Module):
    """A model under autocast, if the input is float32."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype, enabled=x.dtype is torch.float32):
            y = self.model(x)
        return y.to(x.dtype)


def images() -> Tensor:
    return torch.randn(4, 16, 10, 9).contiguous(memory_format=LAST)


def pair(dtype: torch.dtype, act: Callable[[], nn.Module] = nn.ReLU6) -> tuple[Cast, Cast]:
    """(stock, swapped under autocast)."""
    stock = Block(act).to(memory_format=LAST)
    with torch.autocast("cpu", dtype):
        model = opswap.swap(copy.deepcopy(stock))
    return Cast(stock, dtype), Cast(model, dtype)


def ran() -> tuple[int, int]:
    assert not counts()[1].get("conv_chain_backward")
    return chains()


@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6, nn.Hardswish])
def test_training(dtype: torch.dtype, act: Callable[[], nn.Module]) -> None:
    stock, model = pair(dtype, act)
    assert_model_as_near(model, stock, lambda: (images(),))
    opswap.reset_stats()
    x = images().requires_grad_()
    with torch.autocast("cpu", dtype):
        output = model.model.block(x)
    assert output.dtype is dtype and ran() == (1, 0)
    output.float().square().mean().backward()
    assert ran() == (1, 1)
    assert x.grad is not None and x.grad.dtype is torch.float32
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert [int(n.num_batches_tracked) for n in model.modules() if isinstance(n, nn.BatchNorm2d)] == [1, 1, 1]


def test_an_input_of_16_bits(dtype: torch.dtype) -> None:
    """As between the layers of a model; its gradient has 16 bits too."""
    _, model = pair(dtype)
    block = model.model.block
    x = images().to(dtype).requires_grad_()
    twin = copy.deepcopy(block)
    with torch.autocast("cpu", dtype):
        output = block(x)
    output.sum().backward()
    wide = x.detach().float().requires_grad_()
    expected = twin(wide)
    expected.sum().to(dtype).backward()
    assert x.grad is not None and x.grad.dtype is dtype and output.dtype is dtype
    assert torch.equal(output, expected.to(dtype))
    assert output.is_contiguous(memory_format=LAST)


def test_backward_inside_of_autocast(dtype: torch.dtype) -> None:
    """Gradients do not depend on where `backward` is called, and the kernels run."""
    _, model = pair(dtype)
    x = images()
    twin = copy.deepcopy(model)
    model(x).square().mean().backward()
    opswap.reset_stats()
    with torch.autocast("cpu", dtype):
        twin.model(x).to(x.dtype).square().mean().backward()
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is dtype
    assert ran() == (1, 1)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)


@pytest.mark.parametrize("frozen", [False, True])
def test_evaluation(dtype: torch.dtype, frozen: bool) -> None:
    stock, model = pair(dtype)
    for m in (stock, model):
        torch.manual_seed(0)
        m.eval()
        for n in m.modules():
            if isinstance(n, nn.BatchNorm2d):
                nn.init.normal_(n.running_mean), nn.init.uniform_(n.running_var, 0.5, 2)
    if frozen:
        opswap.freeze(model)
    x = images()
    with torch.no_grad():
        opswap.reset_stats()
        for _ in range(5):
            found = model.model.block(x)
            with torch.autocast("cpu", dtype):
                cast = model.model.block(x)
            assert found.dtype is torch.float32 and cast.dtype is dtype
            assert torch.equal(cast, found.to(dtype))
            torch.testing.assert_close(found, stock.model.block(x), rtol=1e-4, atol=1e-4)
    assert ran()[0] == 10
    assert not frozen or FROZEN in vars(model.model.block[0])


@pytest.mark.parametrize("trains", [True, False])
def test_contiguous_images(dtype: torch.dtype, trains: bool) -> None:
    """As those in channels_last, bit for bit; the format of the output is that of the parts."""
    block = opswap.swap(Block()).block.train(trains)
    found = []
    for x in (images().contiguous(), None):
        x = found[0][0].contiguous(memory_format=LAST) if x is None else x
        x = x.detach().requires_grad_(trains)
        twin = copy.deepcopy(block)
        opswap.reset_stats()
        with torch.set_grad_enabled(trains), torch.autocast("cpu", dtype):
            y = twin(x)
        assert ran()[0] == 1 and y.dtype is dtype
        if trains:
            y.float().square().mean().backward()
        found.append((x.detach(), y.detach(), x.grad))
    (x, y, grad), (_, same, same_grad) = found
    assert y.is_contiguous() and torch.equal(y, same)
    assert grad is None or (grad.is_contiguous() and torch.equal(grad, same_grad))


def test_left_to_the_parts(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    stock, model = pair(dtype)
    twins = [(copy.deepcopy(stock).model.block, copy.deepcopy(model).model.block) for _ in range(2)]
    wide = [m.double() for m in twins[0]]
    x = images().double()
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(*(m(x) for m in wide))
        monkeypatch.setattr(reduced_precision, "SLOW", frozenset())
        twins[1][1](images())
    assert ran() == (0, 0)


def test_compiled(dtype: torch.dtype) -> None:
    stock, model = pair(dtype)
    compiled = torch.compile(model.model.block, backend="eager")
    x = images()
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(compiled(x), stock.model.block(x), rtol=0.05, atol=0.1)


class TestDense:
    """Gradients of dense convolutions are computed by the kernel that float32 has for them."""

    def test_gradients(self, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        real = conv._kernel_backward
        monkeypatch.setattr(conv, "_kernel_backward", lambda *a: (calls.append(1), real(*a))[1])
        x = torch.randn(8, 48, 24, 24).contiguous(memory_format=LAST).to(dtype).requires_grad_()
        weight = torch.randn(48, 48, 3, 1).div(12).to(dtype).requires_grad_()
        bias = torch.randn(48).to(dtype).requires_grad_()
        tensors = (x, weight, bias)
        output = opswap.functional.conv2d(*tensors, padding=(1, 0))
        grad = torch.randn_like(output)
        found = torch.autograd.grad(output, tensors, grad)
        assert calls
        exact = [t.detach().double().requires_grad_() for t in tensors]
        truth = torch.autograd.grad(T.conv2d(*exact, padding=(1, 0)), exact, grad.double())
        for ours, true in zip(found, truth, strict=True):
            assert ours.dtype is dtype
            rounding = torch.finfo(dtype).eps * true.abs().max().item()
            torch.testing.assert_close(ours.double(), true, rtol=0, atol=rounding)

    @pytest.mark.parametrize("kind", ["contiguous", "small"])
    def test_not_where_torch_is_as_fast(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(conv, "_kernel_backward", lambda *a: pytest.fail("the kernel ran"))
        side = 24 if kind == "contiguous" else 4
        x = torch.randn(4, 48, side, side, dtype=torch.bfloat16)
        if kind == "small":
            x = x.contiguous(memory_format=LAST)
        weight = torch.randn(48, 48, 3, 1, dtype=torch.bfloat16, requires_grad=True)
        opswap.functional.conv2d(x, weight, padding=(1, 0)).sum().backward()


def test_results_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    _, model = pair(dtype)
    x = images()
    found = []
    for number in (1, 3):
        with on_threads(number):
            found.append(outputs_and_gradients(copy.deepcopy(model).model.block, x))
    assert_equal(found[0], found[1])
