# SPDX-License-Identifier: MIT
"""`conv2d`, and which of its directions kernels compute: torch's values, layouts and errors, whoever watches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
from conv_cases import BAD_CALLS, FLOATS, LAST, image
from counted import kernels
from inputs import same_bits
from nearness import Quantities, assert_as_near, named
from opswap import _core
from opswap import functional as F
from opswap.ops import conv as family
from opswap.ops._stats import force_reference
from opswap.ops.conv import Directions, conv_able, conv_wins, why_kept
from step import assert_same_error


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit the tier to one that the public function uses the kernel on, for images of every size."""
    if "avx2" not in opswap.isa.available():
        pytest.skip("torch serves this tier")
    monkeypatch.setattr(family, "_FEWEST_PRODUCTS", 0)
    opswap.reset_stats()
    with opswap.isa.limit("avx2"):
        yield


def leaves_of(c: int = 24, o: int = 32, k: int = 3, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    tensors = (
        image(2, c, 9, 8, dtype=dtype),
        torch.randn(o, c, k, k, dtype=dtype),
        torch.randn(o, dtype=dtype),
    )
    return [t.requires_grad_() for t in tensors]


def assert_as_torch(x: Tensor, w: Tensor, b: Tensor | None, *rest: Any, kernel: bool, **options: Any) -> None:
    """Result, layouts, gradients, and who computed them."""
    leaves = [t for t in (x, w, b) if t is not None and t.requires_grad]
    opswap.reset_stats()
    results = []
    grad = None
    for function in (F.conv2d, T.conv2d):
        y = function(x, w, b, *rest, **options)
        grad = torch.randn_like(y) if grad is None else grad
        results.append((y, *(torch.autograd.grad(y, leaves, grad) if leaves else ())))
    assert opswap.stats()["kernel"] == ({"conv2d": 1, "conv2d_backward": 1} if kernel else {})
    for ours, theirs in zip(*results, strict=True):
        assert ours.stride() == theirs.stride() or ours.shape == w.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


WINDOWS: tuple[tuple[Any, ...], ...] = (
    (),
    (2,),
    (1, 1),
    ((1, 2), (2, 0)),
    ([2, 1], [0, 1], [1, 2]),
    (1, "same"),
    (1, "same", 2),
    (1, "valid"),
)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("arguments", WINDOWS, ids=str)
def test_public_function(dtype: torch.dtype, arguments: tuple[Any, ...]) -> None:
    for memory_format in (LAST, torch.contiguous_format):
        x, w, b = leaves_of(dtype=dtype)
        w = w.detach().contiguous(memory_format=memory_format).requires_grad_()
        for bias in (b, None):
            assert_as_torch(x, w, bias, *arguments, kernel=True)
    (gradient,) = torch.autograd.grad(F.conv2d(x, w, b, *arguments).sum(), w)
    assert gradient.stride() == w.stride()


@pytest.mark.usefixtures("served")
def test_slices_of_channels() -> None:
    whole, (_, w, b) = image(2, 60, 9, 8).requires_grad_(), leaves_of()
    results = [
        torch.autograd.grad(f(whole[:, 20:44], w, b).sin().sum(), (whole, w, b)) for f in (F.conv2d, T.conv2d)
    ]
    assert kernels("conv2d_backward") == 1
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("frozen", range(8))
def test_frozen_parts(frozen: int) -> None:
    """Only what asks for a gradient gets one; without that of the weight everything is torch's."""
    tensors = leaves_of()
    for i, t in enumerate(tensors):
        t.requires_grad_(not frozen >> i & 1)
    assert_as_torch(*tensors, kernel=tensors[1].requires_grad)


@pytest.mark.usefixtures("served")
def test_gradients_of_other_layouts() -> None:
    x, w, b = leaves_of()
    for grad in (torch.ones(()).expand(2, 32, 7, 6), torch.randn(2, 32, 7, 6), torch.randn(4, 32, 7, 6)[::2]):
        results = [torch.autograd.grad(f(x, w, b), (x, w, b), grad) for f in (F.conv2d, T.conv2d)]
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert kernels("conv2d_backward") == 3


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: ((x.detach().contiguous(), w, b), {}),
        lambda x, w, b: ((x[0], w, b), {}),
        lambda x, w, b: ((x[:0], w, b), {}),
        lambda x, w, b: ((x, torch.randn(32, 12, 3, 3, requires_grad=True), b), {"groups": 2}),
        lambda x, w, b: ((x.bfloat16(), w.bfloat16(), b.bfloat16()), {"groups": 1, "stride": 9}),
        lambda x, w, b: ((x, torch.randn(32, 24, 4, 4, requires_grad=True), b), {"padding": "same"}),
        lambda x, w, b: ((x, torch.randn(32, 24, 14, 1, requires_grad=True), b), {"padding": (7, 0)}),
    ],
)
def test_torch_serves_the_rest(change: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
    arguments, options = change(*leaves_of())
    F.conv2d(*arguments, **options)
    assert not kernels("conv2d_backward")


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: (x, w, b, 0),
        lambda x, w, b: (x, w, b, 1, -1),
        lambda x, w, b: (x, w, b, 1, 0, 0),
        lambda x, w, b: (x, w[:, :6], b),
        lambda x, w, b: (x, w, b.double()),
        *BAD_CALLS,
    ],
)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.usefixtures("served")
def test_errors_are_torchs(change: Callable[..., tuple[Any, ...]], grad: bool) -> None:
    arguments = change(*leaves_of())
    with torch.set_grad_enabled(grad):
        assert_same_error(lambda: F.conv2d(*arguments), lambda: T.conv2d(*arguments), 40)


@pytest.mark.usefixtures("served")
def test_double_backward() -> None:
    x, w, _ = leaves_of(8, 8, dtype=torch.float64)
    x = x.detach()[:, :, :4, :4].requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: F.conv2d(x, w, None, 1, 1), (x, w))
    seconds = []
    for f in (F.conv2d, T.conv2d):
        (first,) = torch.autograd.grad(f(x, w, None, 1, 1).square().sum(), w, create_graph=True)
        seconds.append(torch.autograd.grad(first.square().sum(), (x, w)))
    for ours, theirs in zip(*seconds, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("served")
def test_autocast_is_torchs() -> None:
    x, w, b = leaves_of()
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = F.conv2d(x, w, b), T.conv2d(x, w, b)
    assert ours.dtype is theirs.dtype is torch.bfloat16
    ours.sum().backward()
    assert not kernels("conv2d_backward")


@pytest.mark.usefixtures("served")
def test_under_every_watcher() -> None:
    """torch.func, jit.trace, export and a compiler see torch's own convolution."""
    x, w, b = (t.detach() for t in leaves_of())

    def loss(w: Tensor) -> Tensor:
        return F.conv2d(x, w, b, 1, 1).square().sum()

    def stock(w: Tensor) -> Tensor:
        return T.conv2d(x, w, b, 1, 1).square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(w), torch.func.grad(stock)(w), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.func.jvp(loss, (w,), (w,)), torch.func.jvp(stock, (w,), (w,)))
    ws = torch.stack((w, 2 * w))
    torch.testing.assert_close(torch.func.vmap(loss)(ws), torch.func.vmap(stock)(ws))
    module = nn.Conv2d(24, 32, 3).to(memory_format=LAST)
    module.forward = lambda x: F.conv2d(x, module.weight, module.bias)  # type: ignore[method-assign]
    traced = torch.jit.trace(module, x, check_trace=False)
    assert "aten::_convolution" in str(traced.inlined_graph)
    compiled = torch.compile(module.forward, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))
    assert not kernels("conv2d_backward")


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing(use_reentrant: bool) -> None:
    x, w, b = leaves_of()
    results = []
    for run in (F.conv2d, lambda *t: checkpoint(F.conv2d, *t, use_reentrant=use_reentrant)):
        results.append(
            torch.autograd.grad(run(x, w, b).sin().sum(), (x, w, b)) if not use_reentrant else None
        )
        if use_reentrant:
            for t in (x, w, b):
                t.grad = None
            run(x, w, b).sin().sum().backward()
            results[-1] = (x.grad, w.grad, b.grad)
    for once, again in zip(*results, strict=True):
        assert same_bits(once, again)
    assert kernels("conv2d_backward") == 2


@pytest.mark.usefixtures("served")
def test_an_input_that_was_overwritten_is_noticed() -> None:
    x, w, b = leaves_of()
    y = F.conv2d(x.relu(), w, b)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.usefixtures("served")
def test_reference_and_disabled() -> None:
    x, w, b = leaves_of()
    with opswap.disabled():
        F.conv2d(x, w, b).sum().backward()
    assert not opswap.stats()["kernel"]
    y = F.conv2d(x, w, b)
    with force_reference():
        y.sum().backward()
    assert opswap.stats()["reference"]["conv2d_backward"] == 1


@pytest.fixture
def every_direction(served: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in all directions, whatever was measured."""
    del served
    monkeypatch.setattr(family, "_directions_of", lambda *_: Directions(True, True, True))


@pytest.mark.usefixtures("every_direction")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("arguments", WINDOWS, ids=str)
def test_every_direction_by_kernels(dtype: torch.dtype, arguments: tuple[Any, ...]) -> None:
    before = _core.conv_variants()
    x, w, b = leaves_of(dtype=dtype)
    for bias in (b, None):
        assert_as_torch(x, w, bias, *arguments, kernel=True)
    name = "forward_f32" if dtype is torch.float32 else "forward_f64"
    assert _core.conv_variants()[name] - before[name] == 4


@pytest.mark.usefixtures("every_direction")
@pytest.mark.parametrize("wins", [(bool(i & 1), bool(i & 2), bool(i & 4)) for i in range(8)])
@pytest.mark.parametrize("frozen", [0, 1, 2, 4, 5, 6])
def test_directions_are_decided_one_by_one(
    wins: tuple[bool, ...], frozen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(family, "_directions_of", lambda *_: Directions(*wins))

    def draw() -> tuple[Quantities, Quantities, Quantities]:
        tensors = leaves_of()
        return (
            gradients(T.conv2d, [t.detach().double() for t in tensors], frozen),
            gradients(T.conv2d, [t.detach() for t in tensors], frozen),
            gradients(F.conv2d, [t.detach() for t in tensors], frozen),
        )

    assert_as_near(draw)


def gradients(function: Callable[..., Tensor], tensors: list[Tensor], frozen: int) -> Quantities:
    """Those of a sum of sines, which depend on the output too; bit i of `frozen`: tensor i has none."""
    for i, t in enumerate(tensors):
        t.requires_grad_(not frozen >> i & 1)
    leaves = [t for t in tensors if t.requires_grad]
    return named(torch.autograd.grad(function(*tensors, 1, 1).sin().sum(), leaves))


class TestCosts:
    def test_forward_and_data_gradient(self) -> None:
        if "avx512" not in opswap.isa.available():
            pytest.skip("this machine has no avx512")
        with opswap.isa.limit("avx512"):
            assert family._directions_of("avx512", 64, 64, 3, 1) == (True, True, True)
            assert family._directions_of("avx512", 3, 64, 3, 3) == (True, False, True)
            assert family._directions_of("avx512", 3, 24, 3, 3) == (True, False, True)
            assert family._directions_of("avx512", 16, 24, 3, 3).forward is False
            assert family._directions_of("avx512", 32, 32, 3, 1) == (False, False, True)
            assert family._directions_of("avx512", 256, 256, 3, 3) == (False, False, True)
            assert family._directions_of("avx512", 256, 256, 3, 3, 2) == (False, True, True)
            assert family._directions_of("avx512", 256, 256, 1, 1, 2).of_input is False
        assert family._directions_of("avx2", 64, 64, 3, 1) == (False, False, True)
        assert family._directions_of("avx2", 64, 64, 3, 3, 2) == (False, True, True)

    @pytest.mark.parametrize("tier", ["scalar", "portable64"])
    def test_not_measured(self, tier: str) -> None:
        if tier not in (*opswap.isa.available(), *opswap.isa.hidden()):
            pytest.skip(f"this build has no {tier}")
        with opswap.isa.limit(tier):
            assert (
                not conv_wins(64, 64, (3, 3)) and why_kept((64, 64, 3, 3), ([1, 1], [1, 1], [1, 1])) is None
            )

    @pytest.mark.parametrize("tier", ["avx2", "avx512"])
    def test_sizes(self, tier: str) -> None:
        if tier not in opswap.isa.available():
            pytest.skip(f"this machine has no {tier}")
        with opswap.isa.limit(tier):
            assert (
                conv_wins(64, 64, (3, 3)) and conv_wins(3, 64, (3, 3)) and conv_wins(256, 68, (13, 1), 4608)
            )
            assert not conv_wins(2, 2, (3, 3)) and not conv_wins(64, 64, (15, 1))
            assert not conv_wins(64, 64, (3, 3), 9)

    @pytest.mark.usefixtures("served")
    def test_able(self) -> None:
        module, x = nn.Conv2d(24, 32, 3), image(2, 24, 9, 8)
        assert conv_able(module, x)
        assert not conv_able(module, x.contiguous()) and not conv_able(module, None)
        assert not conv_able(nn.Conv2d(24, 32, 3, padding=1, padding_mode="reflect"), x)
        assert not conv_able(nn.Conv2d(24, 32, 3, groups=2), x)
        assert not conv_able(nn.Conv2d(24, 32, 1), x)  # that of 1 x 1 has a kernel of its own
        with torch.no_grad():
            assert not conv_able(module, x)

    @pytest.mark.usefixtures("served")
    @pytest.mark.parametrize("fewest", [1, 1 << 10, 1 << 14, 1 << 18])
    def test_the_cheap_look_decides_as_all_others_do(
        self, monkeypatch: pytest.MonkeyPatch, fewest: int
    ) -> None:
        monkeypatch.setattr(family, "_FEWEST_PRODUCTS", fewest)
        answers = []
        for look in (family._is_small, lambda *_: False):
            monkeypatch.setattr(family, "_is_small", look)
            answers.append(
                [
                    family.conv_pays(
                        image(2, 24, size, 9), torch.ones(outputs, 24, *taps).requires_grad_(), *options
                    )
                    for outputs, size, taps in itertools.product(
                        (16, 32, 6144), (5, 8, 17), ((3, 3), (1, 1), (2, 4))
                    )
                    for options in ((1, 0, 1), ((2, 2), (1, 1), (1, 1)), ([3, 1], "valid", 1), (2, 0, 1))
                ]
            )
        assert answers[0] == answers[1]

    def test_the_cheap_look_takes_what_others_refuse(self) -> None:
        x, weight = image(2, 24, 5, 5), torch.ones(16, 24, 3, 3)
        assert family._is_small(x, weight, 1) and family._is_small(x, weight, (4, 4))
        assert not family._is_small(None, weight, 1) and not family._is_small(x, None, 1)
        assert not family._is_small(x[0], weight, 1) and not family._is_small(x, weight[0], 1)
        assert not family._is_small(x, torch.ones(6144, 24, 1, 1), 1)  # for a kernel that counts otherwise


@pytest.mark.parametrize("sides", [(1, 1), (3, 3), (3, 2)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"padding": np.int64(1)},
        {"padding": np.int64(0)},
        {"padding": (np.int64(2), 1)},
        {"stride": np.int64(2)},
    ],
    ids=str,
)
def test_options_of_numpy(sides: tuple[int, int], options: dict[str, Any]) -> None:
    weight = torch.randn(4, 6, *sides)
    for x in (torch.randn(2, 6, 9, 8), image(2, 6, 9, 8)):
        torch.testing.assert_close(F.conv2d(x, weight, **options), T.conv2d(x, weight, **options))
