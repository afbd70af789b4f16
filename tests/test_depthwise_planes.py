# SPDX-License-Identifier: MIT
"""Depthwise convolutions of contiguous images: converted around the kernels, and as torch's to every caller."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
from counted import counts
from depthwise_cases import FLOATS, HALVES, LAST, assert_near, make, stock
from inputs import layout_of
from modes import Names
from nearness import assert_model_as_near
from opswap import functional as F
from opswap.ops import depthwise as family
from opswap.ops.depthwise import depthwise_able, depthwise_fits
from threads import same_on_any_threads

BOTH = {"depthwise_conv2d": 1, "depthwise_conv2d_backward": 1}
WINDOWS = [
    ((2, 12, 9, 8), 3, (1, 1, 1)),
    ((2, 12, 9, 8), 3, (2, 1, 1)),
    ((1, 24, 7, 11), 5, (1, 2, 1)),
    ((3, 9, 8, 8), 5, (2, 2, 1)),
    ((2, 17, 13, 7), 7, (1, 3, 1)),
    ((2, 8, 7, 7), 7, (2, 0, 1)),  # outputs of one pixel
    ((1, 40, 9, 10), 9, (1, 4, 1)),
    ((2, 12, 9, 11), 3, (1, 2, 2)),
    ((2, 12, 11, 1), (5, 1), (1, (2, 0), 1)),
    ((2, 12, 1, 11), (1, 5), (1, (0, 2), 1)),
    ((5, 33, 6, 5), (1, 3), (1, (0, 1), 3)),
]


@pytest.fixture(autouse=True, params=["avx2", "avx512"])
def served(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tiers on which the public function uses its kernels."""
    if request.param not in opswap.isa.available():
        pytest.skip(f"no {request.param} here")
    with opswap.isa.limit(request.param):
        opswap.reset_stats()
        yield


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "_planes_pay", lambda *_: True)


def planes(*size: Any, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """As `make`, contiguous."""
    x, w, b = make(*size, dtype=dtype)
    return [x.detach().contiguous().requires_grad_(), w, b]


def half_of(x: Tensor) -> Tensor:
    """The same values as a slice of the channels of contiguous images."""
    return torch.cat((x, x), 1).contiguous().chunk(2, 1)[1]


def results(output: Tensor, leaves: list[Tensor], grad: Tensor) -> list[Tensor]:
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("dtype", [*FLOATS, *HALVES])
@pytest.mark.parametrize("change", [Tensor.contiguous, half_of])
@pytest.mark.parametrize(("size", "taps", "window"), WINDOWS)
def test_values_and_strides(
    size: tuple[int, ...], taps: Any, window: Any, change: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x, w, b = planes(*size, taps, dtype=dtype)
    leaves = [change(x.detach()).requires_grad_(), w, b]
    theirs = stock(*leaves, *window)
    grad = torch.randn_like(theirs)
    output = F.depthwise_conv2d(*leaves, *window)
    found = results(output, leaves, grad)
    assert counts() == (BOTH, {})
    assert_near(found, leaves, grad, *window)
    for ours, expected in zip(found, results(theirs, leaves, grad), strict=True):
        assert layout_of(ours) == layout_of(expected)
    assert torch.equal(F.depthwise_conv2d(leaves[0].detach(), w.detach(), b.detach(), *window), found[0])


@pytest.mark.usefixtures("any_size")
def test_a_weight_in_channels_last_decides() -> None:
    """torch's output and gradient are in channels_last then."""
    for change in (Tensor.contiguous, half_of):
        x, w, b = planes(2, 12, 8, 7)
        leaves = [change(x.detach()).requires_grad_(), w.detach().to(memory_format=LAST).requires_grad_(), b]
        grad = torch.randn(2, 12, 8, 7)
        opswap.reset_stats()
        ours, theirs = (results(f(*leaves, 1, 1), leaves, grad) for f in (F.depthwise_conv2d, stock))
        assert counts() == (BOTH, {})
        for a, e in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, e)
            assert layout_of(a) == layout_of(e)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("frozen", range(7))
def test_frozen_parts(frozen: int) -> None:
    tensors = planes(2, 12, 6, 6)
    for i, t in enumerate(tensors):
        t.requires_grad_(not frozen >> i & 1)
    leaves = [t for t in tensors if t.requires_grad]
    output, theirs = F.depthwise_conv2d(*tensors, 1, 1), stock(*tensors, 1, 1)
    grad = torch.randn_like(theirs)
    for a, e in zip(results(output, leaves, grad), results(theirs, leaves, grad), strict=True):
        torch.testing.assert_close(a, e)
        assert layout_of(a) == layout_of(e)
    assert counts() == (BOTH, {})


@pytest.mark.usefixtures("any_size")
def test_gradients_of_other_layouts() -> None:
    x, w, b = planes(2, 12, 6, 7)
    dense = torch.randn(2, 12, 6, 7)
    for grad in (torch.ones(()).expand(2, 12, 6, 7), dense.to(memory_format=LAST), half_of(dense)):
        ours, theirs = (
            torch.autograd.grad(f(x, w, b, 1, 1), (x, w, b), grad) for f in (F.depthwise_conv2d, stock)
        )
        for a, e in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, e)
            assert layout_of(a) == layout_of(e)
    assert counts()[1] == {}


@pytest.mark.usefixtures("any_size")
def test_slices_get_their_gradient_alone() -> None:
    found = []
    for function in (F.depthwise_conv2d, stock):
        x = torch.linspace(-1, 1, 2 * 24 * 7 * 6).view(2, 24, 7, 6).requires_grad_()
        w = torch.linspace(-1, 1, 108).view(12, 1, 3, 3).requires_grad_()
        output = function(x.chunk(2, 1)[1], w, None, 1, 1)
        output.square().sum().backward()
        found.append((output, x.grad, w.grad))
    for a, e in zip(*found, strict=True):
        torch.testing.assert_close(a, e)
        assert layout_of(a) == layout_of(e)
    assert not found[0][1][:, :12].any() and counts() == (BOTH, {})


@pytest.mark.usefixtures("any_size")
def test_the_input_itself_is_kept() -> None:
    """It may not change before the backward, as under torch's convolution, and no copy of it is held meanwhile."""
    x, w, b = planes(2, 12, 6, 6)
    y = x * 1
    output = F.depthwise_conv2d(y, w, b, 1, 1)
    assert output.grad_fn.saved_tensors[0].data_ptr() == y.data_ptr()
    with torch.no_grad():
        y.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.usefixtures("any_size")
def test_double_backward() -> None:
    for change in (Tensor.contiguous, half_of):
        x, w, b = planes(2, 8, 5, 4, dtype=torch.float64)
        leaves = (change(x.detach()).requires_grad_(), w, b)
        for window in ((1, 1), (2, 1), (1, 2, 2)):
            run = lambda *t, window=window: F.depthwise_conv2d(*t, *window)  # noqa: E731
            assert torch.autograd.gradcheck(run, leaves)
            assert torch.autograd.gradgradcheck(run, leaves)


@pytest.mark.usefixtures("any_size")
def test_checkpoint_and_inference() -> None:
    x, w, b = planes(2, 12, 6, 6)
    (plain,) = torch.autograd.grad(F.depthwise_conv2d(x, w, b).pow(2).sum(), w)
    for reentrant in (True, False):
        w.grad = None
        checkpoint(lambda t: F.depthwise_conv2d(t, w, b).pow(2), x, use_reentrant=reentrant).sum().backward()
        assert torch.equal(w.grad, plain)
    expected = F.depthwise_conv2d(x, w, b).detach()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            opswap.reset_stats()
            result = F.depthwise_conv2d(x, w, b)
            assert torch.equal(result, expected) and result.is_contiguous() and not result.requires_grad
            assert counts() == ({"depthwise_conv2d": 1}, {})


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("wide", [False, True], ids=["of 16 bits", "of 32"])
def test_autocast(dtype: torch.dtype, wide: bool) -> None:
    x, w, b = planes(2, 12, 9, 11)
    for change in (Tensor.contiguous, half_of):
        for stride in (1, 2):
            given = change(x.detach().to(torch.float32 if wide else dtype)).requires_grad_()
            opswap.reset_stats()
            with torch.autocast("cpu", dtype):
                output, theirs = F.depthwise_conv2d(given, w, b, stride, 1), stock(given, w, b, stride, 1)
            assert output.dtype is dtype and layout_of(output) == layout_of(theirs)
            grad = torch.randn_like(output)
            found = results(output, [given, w, b], grad)
            assert counts() == (BOTH, {}) and [t.dtype for t in found[1:]] == [given.dtype, w.dtype, b.dtype]
            assert layout_of(found[1]) == layout_of(given.contiguous())
            found[1] = found[1].to(dtype)  # what the kernel gives, exactly
            assert_near(found, [given.to(dtype), w, b], grad, stride, 1)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    for size, window in (
        ((8, 24, 19, 20, 3), (2, 1)),
        ((3, 40, 33, 30, 5), (1, 2)),
        ((16, 58, 28, 28, 3), (1, 1)),
    ):
        leaves = planes(*size, dtype=dtype)
        grad = torch.randn_like(F.depthwise_conv2d(*leaves, *window))

        def run(leaves: list[Tensor] = leaves, window: Any = window, grad: Tensor = grad) -> list[Tensor]:
            return results(F.depthwise_conv2d(*leaves, *window), leaves, grad)

        same_on_any_threads(run)


@pytest.mark.usefixtures("any_size")
def test_what_is_watched_is_torchs() -> None:
    x, w, b = (t.detach() for t in planes(2, 12, 6, 6))
    expected = stock(x, w, b, 1, 1)
    with Names() as seen:
        output = F.depthwise_conv2d(x, w, b, 1, 1)
    assert seen.names == ["aten.convolution.default"] and torch.equal(output, expected)
    mapped = torch.func.vmap(lambda t: F.depthwise_conv2d(t, w, b, 1, 1))(x.unsqueeze(0))
    torch.testing.assert_close(mapped[0], expected)
    gradient = torch.func.grad(lambda t: F.depthwise_conv2d(t, w, b, 1, 1).sum())(x)
    torch.testing.assert_close(gradient, torch.func.grad(lambda t: stock(t, w, b, 1, 1).sum())(x))
    assert counts()[0] == {}
    with opswap.force_reference():
        assert torch.equal(F.depthwise_conv2d(x, w, b, 1, 1), expected)
    assert counts()[0] == {}


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.transpose(2, 3),
        lambda x: x[:, :, ::2],
        lambda x: x[:, :, :, 1:],
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(2, 12, 8, 8),
        lambda x: x[:, :7],
        lambda x: x[:0],
    ],
)
def test_other_planes_are_torchs(change: Callable[[Tensor], Tensor]) -> None:
    x = change(torch.randn(2, 12, 8, 8))
    w = torch.randn(x.shape[1], 1, 3, 3)
    assert torch.equal(F.depthwise_conv2d(x, w, None, 1, 1), stock(x, w, None, 1, 1))
    assert counts()[0] == {} and not depthwise_fits(x, w, None, 1, 1, 1, x.shape[1])


# Size, taps, stride, which of input and weight train, whether the kernels run.
LIMITS = [
    ((1, 32, 32, 64), 3, 1, "both", True),
    ((1, 32, 32, 65), 3, 1, "both", False),
    ((1, 33, 32, 64), 3, 1, "both", True),  # torch's library fills blocks of channels
    ((2, 33, 32, 64), 3, 1, "both", False),
    ((2, 32, 32, 64), 3, 2, "both", True),
    ((3, 32, 32, 64), 3, 2, "both", False),
    ((1, 32, 32, 64), 3, 1, "input", False),
    ((1, 32, 16, 64), 3, 1, "input", True),
    ((1, 32, 32, 64), 3, 1, "weight", False),
    ((1, 32, 16, 64), 3, 1, "weight", True),
    ((1, 32, 16, 64), 3, 1, "none", True),
    ((1, 32, 32, 64), 3, 1, "none", False),
    ((2, 32, 32, 64), 5, 1, "both", True),
    ((2, 32, 32, 64), 5, 1, "weight", True),
    ((2, 32, 32, 64), (1, 5), 1, "both", True),
    ((2, 32, 32, 64), (5, 1), 1, "both", True),
    ((4, 32, 32, 64), (5, 1), 1, "both", False),
    ((2, 32, 32, 64), (5, 1), 1, "input", False),
    ((2, 32, 32, 64), 5, 1, "input", False),
    ((2, 32, 32, 64), 5, 1, "none", False),
]


@pytest.mark.parametrize(("size", "taps", "stride", "trains", "runs"), LIMITS)
@pytest.mark.usefixtures("every_rule_applies")
def test_limits(size: tuple[int, ...], taps: Any, stride: int, trains: str, runs: bool) -> None:
    """Of float32. The function, both conditions and a swapped model agree."""
    channels, sides = size[1], (taps, taps) if isinstance(taps, int) else taps
    padding = tuple(k // 2 for k in sides)
    layer = nn.Conv2d(channels, channels, sides, stride, padding, groups=channels, bias=False)
    layer.requires_grad_(trains in ("both", "weight"))
    x = torch.randn(size).requires_grad_(trains in ("both", "input"))
    options = layer.stride, layer.padding, layer.dilation
    F.depthwise_conv2d(x, layer.weight, None, *options)
    assert counts()[0] == ({"depthwise_conv2d": 1} if runs else {})
    assert depthwise_able(layer, x) is depthwise_fits(x, layer.weight, None, *options, channels) is runs
    for dtype in (torch.float64, *HALVES):
        assert depthwise_fits(x.to(dtype), layer.weight.to(dtype), None, *options, channels)
        if dtype in HALVES:
            with torch.autocast("cpu", dtype):
                assert depthwise_able(layer, x)
    (site,) = opswap.explain(opswap.swap(nn.Sequential(layer)), x).outcomes
    assert bool(site.ran) is runs
    assert runs or "torch is as fast on contiguous images of this size" in site.reason


def test_the_forward_of_large_images_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients are the kernels': as near as stock's, which are sums of 8,192 terms."""
    x, w = torch.randn(2, 32, 64, 64), torch.randn(32, 1, 5, 5) / 5
    found = []
    for function, dtype in ((stock, torch.float64), (F.depthwise_conv2d, torch.float32)):
        given, weight = (t.to(dtype, copy=True).requires_grad_() for t in (x, w))
        with monkeypatch.context() as patched:
            patched.delattr(family, "to_pixels")
            y = function(given, weight, None, 1, 2, 1)
        y.square().sum().backward()
        found.append((y.detach(), given.grad, weight.grad))
    assert torch.equal(found[1][0], stock(x, w, None, 1, 2, 1))
    assert counts()[0] == {"depthwise_conv2d": 1, "depthwise_conv2d_backward": 1}
    for truth, ours in zip(*found, strict=True):
        assert ours.is_contiguous()
        torch.testing.assert_close(ours.double(), truth, rtol=1e-4, atol=1e-4 * truth.abs().max().item())


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("training", [False, True])
def test_swapped_models(training: bool) -> None:
    """Contiguous, as they come: the kernels run in both directions."""
    original = nn.Sequential(
        nn.Conv2d(24, 24, 3, 2, 1, groups=24, bias=False),
        nn.Conv2d(24, 24, 5, padding=2, groups=24),
        nn.Sigmoid(),
        nn.Conv2d(24, 24, 3, padding=2, dilation=2, groups=24),
    ).train(training)
    model = opswap.swap(copy.deepcopy(original))
    x = torch.randn(2, 24, 13, 14)
    opswap.reset_stats()
    output = model(x)
    output.sum().backward()
    found = counts()[0]
    assert found["depthwise_conv2d"] == found["depthwise_conv2d_backward"] == 3 and output.is_contiguous()
    opswap.reset_stats()
    with torch.no_grad():
        assert torch.equal(model(x), output)
    assert counts()[0]["depthwise_conv2d"] == 3
    assert_model_as_near(model, original, lambda: (torch.randn(2, 24, 13, 14),))
