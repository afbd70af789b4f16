# SPDX-License-Identifier: MIT
"""Depthwise convolution as a function: torch's values, gradients, layouts and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import opswap
from conv_cases import BAD_CALLS
from depthwise_cases import FLOATS, LAST, make, stock
from inputs import LAYOUTS, layout_of
from opswap import _core
from opswap import functional as F
from opswap.ops.depthwise import depthwise_able, depthwise_wins, is_depthwise
from step import assert_same_error

SERVED = ("avx2", "avx512")  # the public function uses its kernels on these tiers, torch's on the others


@pytest.fixture(params=SERVED)
def served(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param not in opswap.isa.available():
        pytest.skip(f"no {request.param} here")
    with opswap.isa.limit(request.param):
        yield


def assert_as_torch(x: Tensor, *rest: Any, kernel: bool, **options: Any) -> None:
    """The public function: result, layout, gradients, and who computed it."""
    w, b = rest[:2]
    leaves = [t for t in (x, w, b) if t is not None and t.requires_grad]
    groups = {"groups": x.shape[-3]}
    opswap.reset_stats()
    ours, theirs = F.depthwise_conv2d(x, *rest, **options), T.conv2d(x, *rest, **options, **groups)
    grad = torch.randn_like(theirs)
    gradients = torch.autograd.grad(ours, leaves, grad) if leaves else ()
    expected = torch.autograd.grad(theirs, leaves, grad) if leaves else ()
    names = {"depthwise_conv2d", *(["depthwise_conv2d_backward"] if leaves else [])}
    assert opswap.stats()["kernel"].keys() == (names if kernel else set())
    for a, e in zip((ours, *gradients), (theirs, *expected), strict=True):
        assert layout_of(a) == layout_of(e)
        # Up to 220 products per sum: the two orders of summation differ by more than assert_close allows float32.
        torch.testing.assert_close(a, e, **({"rtol": 1e-5, "atol": 5e-5} if a.dtype is torch.float32 else {}))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("arguments", [(), (2,), (1, 1), (2, 1), ((2, 2), (2, 0)), ([1, 1], [0, 1])])
def test_public_function(dtype: torch.dtype, arguments: tuple[Any, ...]) -> None:
    for memory_format in (LAST, torch.contiguous_format):
        for k in (3, 5, 7):
            x, w, b = make(2, 12, 9, 8, k, dtype)
            w = w.detach().contiguous(memory_format=memory_format).requires_grad_()
            assert_as_torch(x, w, b, *arguments, kernel=True)
            assert_as_torch(x, w, None, *arguments, kernel=True)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("taps", "stride", "dilation"),
    [((3, 3), 1, 1), ((3, 3), 2, 1), ((5, 5), 2, 1), ((5, 5), 1, 2), ((1, 5), 1, 1)],
)
def test_a_large_batch_has_the_bits_of_its_images(
    dtype: torch.dtype, taps: tuple[int, int], stride: int, dilation: int
) -> None:
    """Copies of the kernels prefetch rows, from a size on that depends on the CPU: 18 MB at most, 1 MB at least."""
    count = 640 // dtype.itemsize
    x = torch.randn(count, 24, 40, 41).to(dtype).contiguous(memory_format=LAST).requires_grad_()
    w = torch.randn(24, 1, *taps).to(dtype).requires_grad_()
    window = (None, stride, tuple(t // 2 * dilation for t in taps), dilation)
    output = F.depthwise_conv2d(x, w, *window)
    grad = torch.randn_like(output)
    of_input, of_weight = torch.autograd.grad(output, (x, w), grad)
    for i in range(count):
        image = x[i : i + 1].detach().requires_grad_()
        alone = F.depthwise_conv2d(image, w, *window)
        assert torch.equal(alone[0], output[i])
        assert torch.equal(torch.autograd.grad(alone, image, grad[i : i + 1])[0][0], of_input[i])
    exact = [t.detach().double() for t in (x, w, grad)]
    expected = torch.ops.aten.convolution_backward(
        exact[2],
        *exact[:2],
        None,
        [stride] * 2,
        window[2],
        [dilation] * 2,
        False,
        [0, 0],
        24,
        [False, True, False],
    )[1]
    # Sums of 160,000 products and more, some 500 each; those of bfloat16 are rounded to eight bits.
    torch.testing.assert_close(
        of_weight.double(), expected, rtol=0, atol=0.05 if dtype is torch.float32 else 8
    )


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("frozen", range(1, 8))
def test_frozen_parts(frozen: int) -> None:
    """Only what asks for a gradient gets one."""
    tensors = make(2, 12, 6, 6)
    for i, t in enumerate(tensors):
        t.requires_grad_(not frozen >> i & 1)
    assert_as_torch(*tensors, 1, 1, kernel=True)
    before = _core.depthwise_variants()
    output = F.depthwise_conv2d(*tensors, 1, 1)
    if output.requires_grad:
        output.sum().backward()
    after = _core.depthwise_variants()
    assert (after["grad_input_f32"] > before["grad_input_f32"]) == (not frozen & 1)
    assert (after["grad_weight_f32"] > before["grad_weight_f32"]) == (frozen & 6 != 6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout: str) -> None:
    x, w, b = make(4, 12, 6, 7)
    dense = layout in ("channels_last", "offset")
    x = LAYOUTS[layout](x.detach()).detach().requires_grad_()
    x_is_last = x.is_contiguous(memory_format=LAST) and not x.is_contiguous()
    copied = x.stride(1) == 1 and x.stride(3) >= 12 and x.stride(0) > 0  # a slice of more channels or pixels
    copied |= x.stride()[1:] == (42, 7, 1) and x.stride(0) > 0  # planes, one after another
    assert_as_torch(x, w, b, 1, 1, kernel=(x_is_last or copied) and opswap.isa.current() in SERVED)
    assert x_is_last or not dense or layout == "offset"


@pytest.mark.usefixtures("served")
def test_gradients_of_other_layouts() -> None:
    x, w, b = make(2, 12, 6, 7)
    for grad in (torch.ones(()).expand(2, 12, 6, 7), torch.randn(2, 12, 6, 7), torch.randn(4, 12, 6, 7)[::2]):
        results = []
        for function in (F.depthwise_conv2d(x, w, b, 1, 1), stock(x, w, b, 1, 1)):
            results.append(torch.autograd.grad(function, (x, w, b), grad))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert not opswap.stats()["reference"].get("depthwise_conv2d_backward")


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((0, 12, 6, 6), {}),
        ((2, 7, 6, 6), {}),
        ((12, 6, 6), {}),
        ((2, 12, 9, 9), {"dilation": 2, "stride": 2}),
        ((2, 12, 9, 9), {"dilation": (1, 2)}),
        ((2, 12, 9, 9), {"stride": 3}),
        ((2, 12, 9, 9), {"stride": (1, 2)}),
        ((2, 12, 9, 9), {"padding": "same", "stride": 2}),
        ((2, 12, 9, 9), {"padding": "other"}),
    ],
)
def test_torch_serves_the_rest(size: tuple[int, ...], options: dict[str, Any]) -> None:
    x = torch.randn(size)
    x = x.contiguous(memory_format=LAST) if x.dim() == 4 else x
    channels = size[-3]
    leaves = (
        x.requires_grad_(),
        torch.randn(channels, 1, 3, 3).requires_grad_(),
        torch.randn(channels).requires_grad_(),
    )
    if isinstance(options.get("padding"), str):  # both are errors of torch's
        with pytest.raises((RuntimeError, ValueError), match="padding"):
            F.depthwise_conv2d(*leaves, **options)
        return
    assert_as_torch(*leaves, kernel=False, **options)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("side", "dilation"), [(3, 1), (5, 2), (9, 1)])
@pytest.mark.usefixtures("served")
def test_padding_in_words(padding: str, side: int, dilation: int) -> None:
    x, w, b = make(2, 12, 11, 10, side)
    assert_as_torch(x, w, b, padding=padding, dilation=dilation, kernel=True)


def test_conv2d_leaves_what_has_no_kernel() -> None:
    """And a graph of it has the operator."""
    opswap.reset_stats()
    x, w, b = make(2, 12, 9, 7, 3)
    turned = (
        x.detach().transpose(2, 3).contiguous().transpose(2, 3)
    )  # neither planes nor pixels lie as a kernel reads
    assert torch.equal(F.conv2d(turned, w, b, groups=12), stock(turned, w, b, 1, 0))
    assert opswap.stats()["reference"]["depthwise_conv2d"] == 1
    if depthwise_wins():
        graph = make_fx(lambda *t: F.conv2d(*t, groups=12))(x.detach(), w.detach(), b.detach())
        assert any("depthwise_conv2d" in str(node.target) for node in graph.graph.nodes)


@pytest.mark.parametrize("dilation", [(2,), [2], (1, 1, 1), (), 1.5, "2"], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_in_words_beside_an_odd_dilation(dilation: Any, dtype: torch.dtype) -> None:
    """One number for both directions is right; what torch refuses is refused in its words."""
    x, w, b = (t.detach().to(dtype) for t in make(2, 12, 9, 7, 3))
    options = {"padding": "same", "dilation": dilation}
    try:
        expected = torch.nn.functional.conv2d(x, w, b, groups=12, **options)
    except (RuntimeError, TypeError) as error:
        for function, groups in ((F.depthwise_conv2d, {}), (F.conv2d, {"groups": 12})):
            with pytest.raises(type(error)) as caught:
                function(x, w, b, **options, **groups)
            assert str(caught.value)[:30] == str(error)[:30]
        return
    for output in (F.depthwise_conv2d(x, w, b, **options), F.conv2d(x, w, b, groups=12, **options)):
        torch.testing.assert_close(output, expected)


@pytest.mark.usefixtures("served")
def test_slices_of_more_channels() -> None:
    """As of split: the gradient reaches the slice alone, and nothing is written to the channels beside it."""
    whole = make(2, 36, 8, 7)[0].detach()
    results = []
    for function in (F.depthwise_conv2d, stock):
        leaf, parts = whole.clone(memory_format=torch.preserve_format).requires_grad_(), []
        w = torch.linspace(-1, 1, 108).view(12, 1, 3, 3).requires_grad_()
        opswap.reset_stats()
        for part in leaf.split(12, 1)[1:]:
            parts.append(function(part, w, None, 1, 1))
        torch.cat(parts, 1).square().sum().backward()
        results.append((*parts, leaf.grad, w.grad))
        if function is F.depthwise_conv2d:
            assert opswap.stats()["kernel"] == {"depthwise_conv2d": 2, "depthwise_conv2d_backward": 2}
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert [t.stride() for t in results[0][:3]] == [t.stride() for t in results[1][:3]]
    assert not results[0][2][:, :12].any()


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "taps", "options"),
    [
        ((2, 12, 8, 7), (3, 3), {"padding": 1}),
        ((1, 24, 9, 9), (5, 5), {"padding": 2, "stride": 2}),
        ((3, 9, 6, 1), (1, 5), {"padding": "same"}),
        ((2, 147, 6, 6), (3, 3), {"dilation": 2}),
    ],
)
def test_contiguous_images_beside_a_weight_in_channels_last(
    size: tuple[int, ...], taps: tuple[int, int], options: dict[str, Any], dtype: torch.dtype
) -> None:
    """torch makes a copy of the images, and its output and the gradients are in channels_last."""
    x, b = torch.randn(size, dtype=dtype).requires_grad_(), torch.randn(size[1], dtype=dtype).requires_grad_()
    w = torch.randn(size[1], 1, *taps, dtype=dtype)
    last = w.to(memory_format=LAST).requires_grad_()
    assert_as_torch(x, w.requires_grad_(), b, kernel=True, **options)
    assert_as_torch(x, last, b, kernel=True, **options)
    assert_as_torch(x, last, None, kernel=True, **options)


@pytest.mark.parametrize(
    "weight", [(24, 1, 3, 3), (12, 1, 1, 1), (12, 1, 3, 4), (12, 1, 11, 11), (12, 1, 4, 4), (12, 1, 1, 11)]
)
def test_other_windows(weight: tuple[int, ...]) -> None:
    """A channel multiplier, and sides without a kernel."""
    x = make(2, 12, 11, 11)[0]
    assert_as_torch(x, torch.randn(weight).requires_grad_(), None, kernel=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: (x, w, b, 0),
        lambda x, w, b: (x, w, b, 1, -1),
        lambda x, w, b: (x, w, b[:0]),
        lambda x, w, b: (x, w[:6], b),
        lambda x, w, b: (x, w.repeat(1, 2, 1, 1), b),
        *BAD_CALLS,
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_errors_are_torchs(change: Callable[..., tuple[Any, ...]], grad: bool) -> None:
    arguments = change(*make(2, 12, 6, 6))
    groups = {"groups": 12} if len(arguments) < 6 else {}
    with torch.set_grad_enabled(grad):
        assert_same_error(lambda: F.depthwise_conv2d(*arguments), lambda: T.conv2d(*arguments, **groups), 40)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, b: (x[0], w, b, 1, 1), r"\(N, C, H, W\)"),
        (lambda x, w, b: (x.contiguous(), w, b, 1, 1), "channels_last"),
        (lambda x, w, b: (x.int(), w, b, 1, 1), "input must be of a floating-point dtype, got 32"),
        (
            lambda x, w, b: (x, w.double(), b, 1, 1),
            "weight must be of the input's dtype, got 64, expected 32",
        ),
        (lambda x, w, b: (x, w.half(), b, 1, 1), "weight must be of the input's dtype, got 16, expected 32"),
        (lambda x, w, b: (x.half(), w.bfloat16(), b, 1, 1), "weight must be of the input's dtype"),
        (lambda x, w, b: (x.half(), w, b.half(), 1, 1), "bias must be of the weight's dtype, got 16"),
        (lambda x, w, b: (x, w[:5], b, 1, 1), r"weight must be \(C, 1, kH, kW\) .* got 5, expected 12"),
        (lambda x, w, b: (x, w[..., :2], b, 1, 1), "weight must be"),
        (lambda x, w, b: (x, w[..., :1, :1].contiguous(), b, 1, 1), "several taps"),
        (lambda x, w, b: (x, w, b[:3], 1, 1), "bias must be"),
        (lambda x, w, b: (x, w, b[:0], 1, 1), "bias must be"),
        (lambda x, w, b: (x, w, b, 3, 1), "stride must be 1 or 2 .* got 3"),
        (lambda x, w, b: (x, w, b, True, 1), "stride must be one or two ints from 1 on, got True"),
        (lambda x, w, b: (x, w, b, 1, (1, 2**40)), "padding must be one or two ints"),
        (lambda x, w, b: (x[:, :, :1].clone(), w, b, 1, 0), "smaller than the window"),
        (lambda x, w, b: (x, w, b, 1, 0, 3), "smaller than the window"),
        (lambda x, w, b: (x, w, b, 1, 1, (1, 2)), r"dilation must be the same .* got \(1, 2\)"),
        (lambda x, w, b: (x, w, b, 2, 1, 2), "dilation must be .* 1 with a stride, got 2"),
        (lambda x, w, b: (x, w, b, 1, 1, 0), "dilation must be one or two ints from 1 on, got 0"),
        (lambda x, w, b: (x, w, b, 1, 1, 2**40), "dilation must be one or two ints"),
    ],
)
def test_the_extension_checks_for_itself(change: Callable[..., tuple[Any, ...]], message: str) -> None:
    arguments = change(*(t.detach() for t in make(2, 12, 6, 6)))
    arguments = (*arguments, 1)[:6]
    with pytest.raises(RuntimeError, match=message):
        _core.depthwise(*arguments)
    assert not _core.depthwise_fits(*arguments)


def test_the_extension_checks_gradients() -> None:
    x, w, _ = (t.detach() for t in make(2, 12, 6, 6))
    for grad in (x[:1], x.contiguous(), x.double(), x.half(), x[:, :, :5]):
        with pytest.raises(RuntimeError, match=r"grad_output|channels_last"):
            _core.depthwise_backward(grad, x, w, 1, 1, 1, True, True, True)
    with pytest.raises(TypeError, match="expected 9 arguments, got 2"):
        _core.depthwise_backward(x, w)


@pytest.mark.usefixtures("served")
def test_double_backward() -> None:
    x, w, b = (t.detach().requires_grad_() for t in make(2, 8, 5, 4, dtype=torch.float64))
    for stride in (1, 2):
        assert torch.autograd.gradcheck(lambda *t, s=stride: F.depthwise_conv2d(*t, s, 1), (x, w, b))
        assert torch.autograd.gradgradcheck(lambda *t, s=stride: F.depthwise_conv2d(*t, s, 1), (x, w, b))


@pytest.mark.usefixtures("served")
def test_checkpoint_inference_and_reference() -> None:
    x, w, b = make(2, 12, 6, 6)
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
            assert torch.equal(result, expected) and not result.requires_grad
            assert opswap.stats()["kernel"] == {"depthwise_conv2d": 1}
    with opswap.force_reference():
        assert_as_torch(x, w, b, kernel=False)


@pytest.mark.usefixtures("served")
def test_able() -> None:
    x = make(2, 12, 6, 6)[0]

    def layer(*arguments: Any, **options: Any) -> nn.Conv2d:
        return nn.Conv2d(12, 12, *arguments, groups=12, **options)

    goods = (layer(3), layer(5, 2, 2, bias=False), layer(3, padding=(0, 2)).to(memory_format=LAST))
    goods += (
        layer(3, padding="same"),
        layer(7, padding=3),
        layer(9, 2, 4),
        layer(3, dilation=2),
        layer(5, padding=4, dilation=2),
    )
    for good in goods:
        assert depthwise_wins() and is_depthwise(good) and depthwise_able(good, x)
        opswap.reset_stats()
        F.depthwise_conv2d(x, good.weight, good.bias, good.stride, good.padding, good.dilation)
        assert opswap.stats()["kernel"]
        assert depthwise_able(good, x.contiguous()) and not depthwise_able(good, x.double())
        assert not depthwise_able(good, x.contiguous().transpose(2, 3))
        assert not depthwise_able(good, x[:0]) and not depthwise_able(good, x[0])
        with opswap.force_reference():
            assert not depthwise_able(good, x)
        with opswap.isa.limit("scalar"):
            assert not depthwise_able(good, x) and not depthwise_wins()
    others = (
        layer(11),
        layer(3, 2, dilation=2),
        layer(3, dilation=(1, 2)),
        layer(3, 3),
        layer(4, padding="same"),
        layer(3, padding=1, padding_mode="reflect"),
        nn.Conv2d(12, 12, 3),
        nn.Conv2d(12, 24, 3, groups=12),
        nn.Conv2d(12, 12, 3, groups=6),
    )
    assert not any(depthwise_able(other, x) or is_depthwise(other) for other in others)
    fitting = layer(3)
    assert not torch.func.vmap(lambda t: t * depthwise_able(fitting, t))(x.unsqueeze(0)).any()
