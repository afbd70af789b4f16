# SPDX-License-Identifier: MIT
"""Convolutions and linear maps in 16 bits, computed in float32: the functions and the rules of swap."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
import opswap.functional as F
from counted import counts
from nearness import Quantities, assert_as_near, assert_model_as_near, named
from opswap.ops import reduced_precision
from opswap.ops.depthwise import depthwise_wins
from opswap.ops.pointwise import pointwise_wins
from step import assert_same_error, saved_by
from twins import twins

HALVES = [torch.bfloat16, torch.float16]
LAST = torch.channels_last


pytestmark = pytest.mark.usefixtures("every_half_is_slow")


@pytest.fixture(params=HALVES, ids=["bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


# Sizes of input and weight, and the options.
WINDOWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 6, 9, 8), (5, 6, 3, 3), {"padding": 1}),
    "stride": ((2, 6, 9, 8), (5, 6, 3, 3), {"stride": (2, 1)}),
    "13x1": ((1, 5, 14, 3), (7, 5, 13, 1), {"padding": (6, 0)}),
    "dilation": ((2, 6, 9, 8), (4, 6, 3, 3), {"dilation": 2, "padding": "same"}),
    "valid": ((2, 6, 9, 8), (4, 6, 3, 2), {"padding": "valid"}),
    "same, even": ((2, 6, 9, 8), (4, 6, 4, 2), {"padding": "same"}),
    "groups": ((2, 6, 9, 8), (4, 3, 3, 3), {"groups": 2}),
    "1x1": ((2, 24, 9, 8), (20, 24, 1, 1), {}),
    "1x1, stride": ((2, 24, 9, 8), (20, 24, 1, 1), {"stride": 2}),
    "depthwise": ((2, 24, 9, 8), (24, 1, 3, 3), {"padding": 1, "groups": 24}),
    "depthwise, stride": ((2, 24, 9, 8), (24, 1, 3, 3), {"stride": [2, 2], "groups": 24}),
    "multiplier": ((2, 6, 9, 8), (12, 1, 3, 3), {"groups": 6}),
    "one image": ((6, 9, 8), (4, 6, 3, 3), {}),
    "no image": ((0, 6, 9, 8), (4, 6, 3, 3), {}),
}


def results(function: Callable[..., Tensor], tensors: tuple[Tensor | None, ...]) -> Quantities:
    leaves = [t if t is None else t.detach().requires_grad_() for t in tensors]
    output = function(*leaves)
    weight = torch.linspace(-1, 1, output.numel(), dtype=torch.float64).view_as(output).to(output.dtype)
    (output * weight).sum().backward()
    return named([output, *(None if t is None else t.grad for t in leaves)])


class TestConv2d:
    @pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
    @pytest.mark.parametrize("window", WINDOWS)
    def test_as_near_to_float64_as_torch(self, window: str, last: bool, dtype: torch.dtype) -> None:
        size, weight_size, options = WINDOWS[window]
        stock, ours = (lambda *t, f=f: f(*t, **options) for f in (T.conv2d, F.conv2d))

        def draw() -> tuple[Quantities, Quantities, Quantities]:
            tensors = [torch.randn(s).to(dtype) for s in (size, weight_size, weight_size[:1])]
            if last and len(size) == 4:
                tensors = [t.contiguous(memory_format=LAST) if t.dim() == 4 else t for t in tensors]
            exact = results(stock, tuple(t.double() for t in tensors))
            opswap.reset_stats()
            found = results(ours, tuple(tensors))
            kernels = {"conv2d": 1}
            if "depthwise" in window and depthwise_wins():
                kernels = {"depthwise_conv2d": 1, "depthwise_conv2d_backward": 1}
            assert counts() == (kernels, {})
            return exact, results(stock, tuple(tensors)), found

        assert_as_near(draw)

    def test_strides_are_torchs(self, dtype: torch.dtype) -> None:
        for size, weight_size, options in WINDOWS.values():
            for memory_format in (torch.contiguous_format, LAST)[: len(size) - 2]:
                x, w = (
                    torch.randn(size, dtype=dtype).contiguous(memory_format=memory_format),
                    torch.randn(weight_size),
                )
                ours = F.conv2d(x, w.to(dtype), None, **options)
                assert ours.stride() == T.conv2d(x.float(), w, None, **options).stride()

    def test_under_autocast(self, dtype: torch.dtype) -> None:
        """Outputs are 16 bits; parameters in float32, which are not rounded, have gradients in float32."""
        leaves = [torch.randn(s, requires_grad=True) for s in ((2, 6, 9, 8), (5, 6, 3, 3), (5,))]
        for tensors in (leaves, [leaves[0].to(dtype), *leaves[1:]], [leaves[0].detach(), *leaves[1:]]):
            with torch.autocast("cpu", dtype):
                output = F.conv2d(*tensors, padding=1)
                assert torch.is_autocast_enabled("cpu")
            exact = T.conv2d(*(t.double() for t in tensors), padding=1)
            assert output.dtype is dtype and counts()[0]["conv2d"]
            assert torch.equal(output, T.conv2d(*(t.float() for t in tensors), padding=1).to(dtype))
            grad = torch.randn_like(exact).to(dtype)
            found = torch.autograd.grad(output, [t for t in tensors if t.requires_grad], grad)
            truth = torch.autograd.grad(exact, [t for t in tensors if t.requires_grad], grad.double())
            for ours, true, t in zip(found, truth, [t for t in tensors if t.requires_grad], strict=True):
                assert ours.dtype is t.dtype
                torch.testing.assert_close(ours.double(), true.double(), rtol=1e-2, atol=1e-2)

    def test_float64_is_not_cast_by_autocast(self) -> None:
        x, w = torch.randn(2, 6, 5, 5, dtype=torch.float64), torch.randn(4, 6, 3, 3, dtype=torch.float64)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(F.conv2d(x, w), T.conv2d(x, w))

    def test_kept_for_the_backward(self, dtype: torch.dtype) -> None:
        """Nothing in float32, as torch."""
        x, w = (
            torch.randn(2, 24, 9, 8, dtype=dtype),
            torch.randn(20, 24, 1, 1, dtype=dtype, requires_grad=True),
        )
        rows = torch.randn(3, 24 * 72, dtype=dtype, requires_grad=True)
        kept = saved_by(lambda: (F.conv2d(x.requires_grad_(), w).relu(), F.linear(x.flatten(1), rows)))
        assert kept and {t.dtype for t in kept} == {dtype}

    @pytest.mark.parametrize("frozen", range(1, 8))
    def test_frozen_parts(self, frozen: int) -> None:
        tensors = [torch.randn(s).bfloat16() for s in ((2, 6, 9, 8), (5, 6, 3, 3), (5,))]
        for i, t in enumerate(tensors):
            t.requires_grad_(not frozen >> i & 1)
        output = F.conv2d(*tensors)
        assert output.requires_grad == (frozen < 7)
        if output.requires_grad:
            output.sum().backward()
        assert [t.grad is None for t in tensors] == [bool(frozen >> i & 1) for i in range(3)]

    @pytest.mark.parametrize("form", ["expanded", "transposed", "sliced", "strided grad"])
    def test_other_strides(self, form: str) -> None:
        x, w = torch.randn(2, 24, 9, 8).bfloat16(), torch.randn(20, 24, 1, 1).bfloat16()
        forms = {
            "expanded": x[:1].expand_as(x),
            "transposed": x.transpose(2, 3),
            "sliced": torch.randn(2, 48, 9, 8).bfloat16().contiguous(memory_format=LAST)[:, 3:27],
            "strided grad": x,
        }
        y = forms[form].detach().requires_grad_()
        output = F.conv2d(y, w)
        grad = torch.ones((), dtype=torch.bfloat16).expand_as(output)
        (found,) = torch.autograd.grad(output, y, grad)
        expected = w.double().sum(0)[:, 0, 0]
        torch.testing.assert_close(
            found.double(), expected[:, None, None].expand_as(found), rtol=1e-2, atol=1e-2
        )

    def test_what_is_not_ours_is_torchs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x, w = torch.randn(2, 6, 9, 8), torch.randn(5, 6, 3, 3)
        assert torch.equal(F.conv2d(x, w), T.conv2d(x, w)) and counts() == ({}, {"conv2d": 1})
        with pytest.raises(RuntimeError):
            F.conv2d(x.bfloat16(), w)
        for context in (opswap.force_reference(), opswap.disabled()):
            opswap.reset_stats()
            with context:
                found = F.conv2d(x.bfloat16(), w.bfloat16())
            assert torch.equal(found, T.conv2d(x.bfloat16(), w.bfloat16())) and not counts()[0]
        monkeypatch.setattr(reduced_precision, "SLOW", frozenset())
        assert torch.equal(F.conv2d(x.bfloat16(), w.bfloat16()), T.conv2d(x.bfloat16(), w.bfloat16()))
        assert not counts()[0]

    def test_a_strided_depthwise_convolution_where_the_cpu_has_instructions(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reduced_precision, "SLOW", frozenset())
        x, w = torch.randn(2, 24, 9, 8).bfloat16(), torch.randn(24, 1, 3, 3).bfloat16()
        own = {"depthwise_conv2d": 1} if depthwise_wins() else None
        for stride, times in ((1, own or {}), (2, own or {"conv2d": 1}), (3, {"conv2d": 1})):
            opswap.reset_stats()
            F.conv2d(x, w, None, stride, 1, 1, 24)
            assert counts()[0] == times

    def test_kernels_of_float32(self) -> None:
        if not pointwise_wins():
            pytest.skip("left to torch on this tier")
        x = torch.randn(2, 24, 9, 8).contiguous(memory_format=LAST)
        F.conv2d(x, torch.randn(20, 24, 1, 1))
        F.conv2d(x, torch.randn(24, 1, 3, 3), None, 1, 1, 1, 24)
        assert counts()[0] == {"pointwise_conv2d": 1, "depthwise_conv2d": 1}

    @pytest.mark.parametrize(
        "change",
        [
            lambda x, w, b: (x, w, b, 0),
            lambda x, w, b: (x, w, b, 1, -1),
            lambda x, w, b: (x, w, b[:3]),
            lambda x, w, b: (x[:, :4], w, b),
            lambda x, w, b: (x[:, :, :2, :2], w, b),
            lambda x, w, b: (x, w, b, 1.5),
            lambda x, w, b: (x, w, b, 1, "other"),
            lambda x, w, b: (x, w, b, 2, "same"),
            lambda x, w, b: (x, w, b, 1, 0, 1, 4),
            lambda x, w, b: (x[0, 0], w, b),
            lambda x, w, b: (x, w[0], b),
            lambda x, w, b: (x, None, b),
            lambda x, w, b: (x, w, [1.0]),
        ],
    )
    def test_errors_are_torchs(self, change: Callable[..., tuple[Any, ...]]) -> None:
        arguments = change(*(torch.randn(s).bfloat16() for s in ((2, 6, 9, 8), (5, 6, 3, 3), (5,))))
        assert_same_error(lambda: F.conv2d(*arguments), lambda: T.conv2d(*arguments), 0)


class TestLinear:
    @pytest.mark.parametrize("size", [(3, 7), (2, 3, 7), (7,), (0, 7)], ids=str)
    def test_as_near_to_float64_as_torch(self, size: tuple[int, ...], dtype: torch.dtype) -> None:
        def draw() -> tuple[Quantities, Quantities, Quantities]:
            tensors = tuple(torch.randn(s).to(dtype) for s in (size, (5, 7), (5,)))
            exact = results(T.linear, tuple(t.double() for t in tensors))
            opswap.reset_stats()
            found = results(F.linear, tensors)
            assert counts() == ({"linear": 1}, {})
            return exact, results(T.linear, tensors), found

        assert_as_near(draw)

    def test_weight_of_one_dimension(self, dtype: torch.dtype) -> None:
        x, w = torch.randn(3, 7).to(dtype), torch.randn(7).to(dtype)
        torch.testing.assert_close(F.linear(x, w), T.linear(x, w), rtol=2e-2, atol=2e-2)

    def test_under_autocast(self, dtype: torch.dtype) -> None:
        leaves = [torch.randn(s, requires_grad=True) for s in ((3, 7), (5, 7), (5,))]
        with torch.autocast("cpu", dtype):
            output = F.linear(*leaves)
        assert output.dtype is dtype and torch.equal(output, T.linear(*leaves).to(dtype))
        output.sum().backward()
        assert {t.grad.dtype for t in leaves} == {torch.float32}

    @pytest.mark.parametrize("sizes", [((3, 7), (5, 6)), ((), (5, 7)), ((3, 7), (2, 5, 7))], ids=str)
    def test_errors_are_torchs(self, sizes: tuple[tuple[int, ...], ...]) -> None:
        arguments = [torch.randn(s).bfloat16() for s in sizes]
        assert_same_error(lambda: F.linear(*arguments), lambda: T.linear(*arguments), 0)

    @pytest.mark.parametrize("needed", [(True, False), (False, True), (False, False)], ids=str)
    def test_what_no_gradient_reads_may_change(self, needed: tuple[bool, bool], dtype: torch.dtype) -> None:
        """As torch's linear, which keeps the input for the gradient of the weight only, and the other way round."""
        x = torch.randn(2, 3, 6, dtype=dtype).requires_grad_(needed[0])
        w = torch.randn(4, 6, dtype=dtype).requires_grad_(needed[1])
        b = torch.randn(4, dtype=dtype, requires_grad=True)
        output, exact = F.linear(x, w, b), T.linear(x.double(), w.double(), b.double())
        assert counts()[0]["linear"]
        grad, wanted = torch.randn_like(exact).to(dtype), [t for t in (x, w, b) if t.requires_grad]
        truth = torch.autograd.grad(exact, wanted, grad.double())
        with torch.no_grad():
            for t, other in ((x, needed[1]), (w, needed[0])):
                if not other:
                    t.zero_()
        for ours, true in zip(torch.autograd.grad(output, wanted, grad), truth, strict=True):
            assert ours.dtype is dtype
            torch.testing.assert_close(ours.double(), true.double(), rtol=1e-2, atol=1e-2)


def _conv(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x, w, None, 1, 1)


def _by_torch(x: Tensor, w: Tensor) -> Tensor:
    return T.conv2d(x, w, None, 1, 1)


class TestTransforms:
    @pytest.fixture
    def tensors(self) -> tuple[Tensor, Tensor]:
        return torch.randn(2, 6, 9, 8).bfloat16(), torch.randn(5, 6, 3, 3).bfloat16()

    @pytest.mark.parametrize("cast", [False, True], ids=["16 bits", "autocast"])
    def test_compile(self, cast: bool) -> None:
        torch._dynamo.reset()

        def function(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                return F.linear(_conv(x, w).flatten(2), v)

        def stock(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=cast and x.dtype is torch.float32):
                return T.linear(_by_torch(x, w).flatten(2), v)

        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)

        def draw() -> tuple[Quantities, Quantities, Quantities]:
            leaves = tuple(torch.randn(s) for s in ((2, 6, 9, 8), (5, 6, 3, 3), (3, 72)))
            leaves = leaves if cast else tuple(t.bfloat16() for t in leaves)
            assert compiled(*leaves).dtype is torch.bfloat16
            exact = results(stock, tuple(t.double() for t in leaves))
            return exact, results(stock, leaves), results(compiled, leaves)

        assert_as_near(draw)

    def test_exported_programs_are_torchs(self, tensors: tuple[Tensor, Tensor]) -> None:
        class Layer(nn.Module):
            def forward(self, x: Tensor, w: Tensor) -> Tensor:
                return _conv(x, w)

        for strict in (True, False):
            program = torch.export.export(Layer(), tensors, strict=strict)
            assert "conv2d" in str(program.graph) and "to.dtype" not in str(program.graph)
        graph = torch.jit.trace(Layer(), tensors).inlined_graph
        assert "aten::to" not in str(graph)

    def test_func(self, tensors: tuple[Tensor, Tensor]) -> None:
        x, w = tensors
        close = {"rtol": 2e-2, "atol": 2e-1}
        ours, theirs = (
            torch.func.grad(lambda a, b, f=f: f(a, b).float().sum(), (0, 1))(x, w) for f in (_conv, _by_torch)
        )
        torch.testing.assert_close(ours, theirs, **close)
        stack = torch.stack((x, 2 * x))
        torch.testing.assert_close(
            torch.func.vmap(_conv, (0, None))(stack, w)[1], _by_torch(2 * x, w), **close
        )
        tangents = tuple(torch.randn_like(t) for t in tensors)
        for a, b in zip(*(torch.func.jvp(f, tensors, tangents) for f in (_conv, _by_torch)), strict=True):
            torch.testing.assert_close(a, b, **close)

    def test_gradients_of_gradients_and_in_a_batch(self, tensors: tuple[Tensor, Tensor]) -> None:
        leaves = [t.requires_grad_() for t in tensors]

        def twice(function: Callable[..., Tensor], leaves: list[Tensor]) -> tuple[Tensor, ...]:
            first = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
            return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

        exact = twice(_by_torch, [t.detach().double().requires_grad_() for t in leaves])
        for ours, true in zip(twice(_conv, leaves), exact, strict=True):
            assert (ours.double() - true).abs().max() < 0.05 * true.abs().max()
        output = _conv(*leaves)
        grads = torch.randn(3, *output.shape).bfloat16()
        batched = torch.autograd.grad(output, leaves, grads, retain_graph=True, is_grads_batched=True)
        for i, grad in enumerate(grads):
            for a, b in zip(
                batched, torch.autograd.grad(output, leaves, grad, retain_graph=True), strict=True
            ):
                torch.testing.assert_close(a[i], b, rtol=2e-2, atol=5e-2)

    def test_checkpoint_under_autocast(self) -> None:
        x, w = torch.randn(2, 6, 9, 8), torch.randn(5, 6, 3, 3, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            (plain,) = torch.autograd.grad(_conv(x, w).float().sum(), w)
            for reentrant in (True, False):
                w.grad = None
                y = checkpoint(lambda t: _conv(t, w), x.requires_grad_(), use_reentrant=reentrant)
                y.float().sum().backward()
                assert torch.equal(w.grad, plain)

    def test_inference(self, tensors: tuple[Tensor, Tensor]) -> None:
        expected = _conv(*tensors)
        for context in (torch.no_grad(), torch.inference_mode()):
            with context:
                assert torch.equal(_conv(*tensors), expected)


class Net(nn.Module):
    """Every kind of convolution, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 24, 3, 2, bias=False), nn.BatchNorm2d(24)
        self.point, self.depth = nn.Conv2d(24, 24, 1), nn.Conv2d(24, 24, 3, 2, 1, groups=24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.depth(self.point(self.bn(self.stem(x)))).mean((2, 3))
        return self.head(y)


LAYERS = {"stem": "conv2d_16bit", "point": "conv2d_16bit", "depth": "conv2d_16bit", "head": "linear_16bit"}


def computed() -> int:
    """Convolutions by kernels, and in float32."""
    kernels = counts()[0]
    return kernels.get("conv2d", 0) + kernels.get("depthwise_conv2d", 0)


def rules_of(model: nn.Module) -> dict[str, str]:
    return {s.path: s.rule for s in opswap.report(model).swapped if s.path in LAYERS}


@pytest.mark.usefixtures("every_rule_applies")
class TestSwap:
    def test_a_model_of_16_bits(self, dtype: torch.dtype) -> None:
        stock = Net().to(dtype)
        model = opswap.swap(copy.deepcopy(stock))
        assert rules_of(model) == LAYERS
        assert_model_as_near(model, stock, lambda: (torch.randn(4, 3, 17, 17, dtype=dtype),))
        opswap.reset_stats()
        model(torch.randn(4, 3, 17, 17, dtype=dtype)).sum().backward()
        assert computed() == 3 and counts()[0]["linear"] == 1

    def test_under_autocast(self, dtype: torch.dtype) -> None:
        with torch.autocast("cpu", dtype):
            model = opswap.swap(Net(), memory_format=LAST)
        assert rules_of(model) == LAYERS
        x = torch.randn(4, 3, 17, 17).contiguous(memory_format=LAST)
        with torch.autocast("cpu", dtype):
            output = model(x)
        output.float().sum().backward()
        assert output.dtype is dtype and {p.grad.dtype for p in model.parameters()} == {torch.float32}
        kernels = counts()[0]
        own = kernels.get("depthwise_conv2d", 0)
        assert (own, computed(), kernels["linear"]) == (int(depthwise_wins()), 3, 1)

    def test_float32_afterwards(self) -> None:
        """The same model without autocast runs the kernels of float32 and torch's own convolution."""
        stock = Net()
        with torch.autocast("cpu", torch.bfloat16):
            model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
        x = torch.randn(4, 3, 17, 17).contiguous(memory_format=LAST)
        torch.testing.assert_close(model(x), stock.to(memory_format=LAST)(x), rtol=1e-4, atol=1e-4)
        kernels, _ = counts()
        assert "conv2d" not in kernels and "linear" not in kernels
        assert not pointwise_wins() or kernels["pointwise_conv2d"] == kernels["depthwise_conv2d"] == 1

    def test_not_in_float32_and_not_exact(self, dtype: torch.dtype) -> None:
        assert not set(LAYERS.values()) & set(rules_of(opswap.swap(Net())).values())
        assert not rules_of(opswap.swap(Net().to(dtype), exact=True))

    def test_not_where_the_cpu_has_instructions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reduced_precision, "SLOW", frozenset((torch.float16,)))
        found = rules_of(opswap.swap(Net().bfloat16()))
        assert [path for path, rule in found.items() if rule == "conv2d_16bit"] == ["depth"]

    def test_other_padding(self) -> None:
        model = nn.Sequential(nn.Conv2d(6, 5, 3, padding=1, padding_mode="reflect")).bfloat16()
        (site,) = opswap.report(opswap.swap(model)).kept
        assert "padding_mode='reflect'" in site.reason

    def test_settings_copies_and_back(self, dtype: torch.dtype) -> None:
        model = opswap.swap(Net().to(dtype).eval())
        x = torch.randn(2, 3, 17, 17, dtype=dtype)
        expected = model(x)
        for twin in twins(model):
            opswap.reset_stats()
            assert torch.equal(twin(x), expected) and computed() == 3
        model.stem.padding_mode = "circular"
        opswap.reset_stats()
        model(x)
        assert computed() == 2
        assert type(opswap.unswap(model).stem) is nn.Conv2d and type(model.head) is nn.Linear

    def test_compiled(self) -> None:
        torch._dynamo.reset()
        model = opswap.swap(Net().bfloat16().eval())
        x = torch.randn(2, 3, 17, 17).bfloat16()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
