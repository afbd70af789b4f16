# SPDX-License-Identifier: MIT
"""Depthwise convolution: torch's values, gradients, layouts and errors; the same bits at any number of threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
from inputs import LAYOUTS, same_bits
from nearness import assert_within_roundings
from opswap import _core
from opswap import functional as F
from opswap.ops.depthwise import depthwise_able, depthwise_wins, is_depthwise

LAST = torch.channels_last
FLOATS = (torch.float32, torch.float64)


SERVED = ("avx2", "avx512")  # the public function uses its kernels on these tiers, torch's on the others


@pytest.fixture(params=SERVED)
def served(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param not in opswap.isa.available():
        pytest.skip(f"no {request.param} here")
    with opswap.isa.limit(request.param):
        yield


def make(n: int, c: int, h: int, w: int, k: int = 3, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Input, weight and bias that ask for gradients."""
    x = torch.randn(n, c, h, w, dtype=dtype).contiguous(memory_format=LAST)
    tensors = (x, torch.randn(c, 1, k, k, dtype=dtype), torch.randn(c, dtype=dtype))
    return [t.requires_grad_() for t in tensors]


def stock(x: Tensor, w: Tensor, b: Tensor | None, stride: int, padding: Any, dilation: int = 1) -> Tensor:
    return T.conv2d(x, w, b, stride, padding, dilation, x.shape[1])


def layout_of(t: Tensor) -> list[int]:
    """Strides that mean something."""
    return [step for step, size in zip(t.stride(), t.shape, strict=True) if size > 1]


def all_results(tensors: Sequence[Tensor], grad: Tensor, *window: Any) -> list[Tensor]:
    """torch's output and three gradients."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    output = stock(*leaves, *window)
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def kernel_results(
    tensors: Sequence[Tensor], grad: Tensor, stride: int, padding: Any, dilation: int = 1
) -> list[Tensor]:
    x, w, b = tensors
    output = _core.depthwise(x, w, b, stride, padding, dilation)
    return [output, *_core.depthwise_backward(grad, x, w, stride, padding, dilation, True, True, True)]


def assert_close(tensors: Sequence[Tensor], *window: Any) -> None:
    """Output and gradients against float64: as near as sums of that many products are."""
    tensors = [t.detach() for t in tensors]
    dtype = tensors[0].dtype
    shape = stock(*tensors, *window).shape
    grad = torch.randn(shape, dtype=dtype).contiguous(memory_format=LAST)
    wide = [t.double() for t in (*tensors, grad)]
    truth, magnitudes, terms = (
        all_results([change(t) for t in wide[:3]], change(wide[3]), *window)
        for change in (lambda t: t, torch.abs, torch.ones_like)
    )
    results = kernel_results(tensors, grad, *window)
    names = ("output", "gradient of the input", "gradient of the weight", "gradient of the bias")
    for name, ours, *expected in zip(names, results, truth, magnitudes, terms, strict=True):
        assert ours.dtype == dtype
        assert_within_roundings(ours, *expected, name)


def geometries(count: int, seed: int) -> list[tuple[int, ...]]:
    """Channels around the widths of vectors, maps from one pixel, every stride, padding, dilation and side."""
    generator = random.Random(seed)
    found: list[tuple[int, ...]] = []
    while len(found) < count:
        k, stride = generator.choice((3, 5, 7, 9)), generator.choice((1, 2))
        dilation = generator.choice((1, 1, 2, 3, 5)) if stride == 1 else 1
        extent = (k - 1) * dilation + 1
        c, h, w = generator.randint(1, 40), generator.randint(1, 12), generator.randint(1, 12)
        padding = generator.randint(0, extent), generator.randint(0, extent)
        if h + 2 * padding[0] >= extent and w + 2 * padding[1] >= extent:
            found.append((generator.randint(1, 3), c, h, w, k, stride, *padding, dilation))
    return found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", range(4))
def test_small_maps(tier: str, dtype: torch.dtype, seed: int) -> None:
    for n, c, h, w, k, stride, top, left, dilation in geometries(60, seed):
        assert_close(make(n, c, h, w, k, dtype), stride, (top, left), dilation)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("k", [3, 5, 7, 9])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 2), (1, 3)])
def test_every_width(tier: str, dtype: torch.dtype, k: int, stride: int, dilation: int) -> None:
    """Strips of every length at both margins, and channels that end within a vector."""
    window = (stride, k // 2 * dilation, dilation)
    for width in range(1, 32):
        assert_close(make(2, 11, 5, width, k, dtype), *window)
    for channels in range(1, 41):
        assert_close(make(1, channels, 4, 9, k, dtype), *window)


@hypothesis_seed(19)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    k=st.sampled_from((3, 5, 7, 9)),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 6),
    padding=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    double=st.booleans(),
)
def test_any_window(
    tier: str,
    size: tuple[int, ...],
    k: int,
    stride: int,
    dilation: int,
    padding: tuple[int, int],
    double: bool,
) -> None:
    dilation = 1 if stride == 2 else dilation
    assume(all(n + 2 * p > (k - 1) * dilation for n, p in zip(size[2:], padding, strict=True)))
    assert_close(make(*size, k, torch.float64 if double else torch.float32), stride, padding, dilation)


@pytest.mark.parametrize("size", [(3, 24, 40, 41), (2, 58, 28, 28), (19, 16, 5, 6), (2, 8, 1200, 2)])
@pytest.mark.parametrize(("k", "stride", "dilation"), [(3, 1, 1), (3, 2, 1), (7, 1, 1), (7, 2, 1), (5, 1, 2)])
def test_larger_maps(tier: str, size: tuple[int, ...], k: int, stride: int, dilation: int) -> None:
    """Several chunks an image, several images a chunk, and a last chunk with fewer images."""
    assert_close(make(*size, k), stride, k // 2 * dilation, dilation)


@pytest.mark.parametrize("size", [(3, 24, 40, 41), (19, 16, 5, 6), (16, 58, 28, 28)])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("k", [3, 7])
def test_bits_do_not_depend_on_threads(
    tier: str, size: tuple[int, ...], k: int, stride: int, dilation: int
) -> None:
    window = (stride, k // 2 * dilation, dilation)
    tensors = [t.detach() for t in make(*size, k)]
    grad = torch.randn(stock(*tensors, *window).shape).contiguous(memory_format=LAST)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(kernel_results(tensors, grad, *window))
    finally:
        torch.set_num_threads(before)
    for one, two, three in zip(*results, strict=True):
        assert same_bits(one, two) and same_bits(one, three)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("stride", [1, 2])
def test_non_finite_values_stay_where_they_belong(tier: str, value: float, stride: int) -> None:
    """In the input and in the gradient; channels that share a vector are not touched."""
    for at in range(2):
        x, w, b = (t.detach() for t in make(1, 11, 6, 7))
        grad = torch.randn(stock(x, w, b, stride, 1).shape).contiguous(memory_format=LAST)
        (x, grad)[at][0, 8, 2, 2] = value
        exact = all_results([t.double() for t in (x, w, b)], grad.double(), stride, 1)
        for ours, e in zip(kernel_results((x, w, b), grad, stride, 1), exact, strict=True):
            torch.testing.assert_close(ours, e.float(), equal_nan=True)


def test_padding_is_no_zero_times_an_infinite_tap(tier: str) -> None:
    x, w, b = (t.detach() for t in make(1, 11, 6, 7))
    finite = kernel_results((x, w, b), x, 1, 1)[:2]
    w[8, 0, 0, 0] = float("inf")
    output, grad_input = kernel_results((x, w, b), x, 1, 1)[:2]
    assert output[0, 8, 1:, 1:].isinf().all() and grad_input[0, 8, :-1, :-1].isinf().all()
    for ours, e in zip((output, grad_input), finite, strict=True):
        assert torch.equal(torch.where(ours.isinf(), e, ours), e)


def test_every_variant_was_run() -> None:
    for dtype in FLOATS:
        assert_close(make(1, 9, 4, 5, 3, dtype), 1, 1)
    assert all(_core.depthwise_variants().values())


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
        torch.testing.assert_close(a, e)


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


@pytest.mark.parametrize(
    "weight", [(24, 1, 3, 3), (12, 1, 1, 1), (12, 1, 3, 5), (12, 1, 11, 11), (12, 1, 4, 4)]
)
def test_other_windows(weight: tuple[int, ...]) -> None:
    """A channel multiplier, and sides without a kernel."""
    x = make(2, 12, 11, 11)[0]
    assert_as_torch(x, torch.randn(weight).requires_grad_(), None, kernel=False)


def test_half_precision() -> None:
    x, w, b = (t.detach().bfloat16().requires_grad_() for t in make(2, 12, 6, 6))
    assert_as_torch(x, w, b, kernel=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: (x, w, b, 0),
        lambda x, w, b: (x, w, b, 1, -1),
        lambda x, w, b: (x, w, b[:5]),
        lambda x, w, b: (x, w, b[:0]),
        lambda x, w, b: (x, w[:6], b),
        lambda x, w, b: (x, w.repeat(1, 2, 1, 1), b),
        lambda x, w, b: (x[:, :, :2, :2], w, b),
        lambda x, w, b: (x, w.double(), b),
        lambda x, w, b: (x, w, b, 1.5),
        lambda x, w, b: (x, w, b, (1, 1, 1)),
        lambda x, w, b: (x, w, b, 1, "other"),
        lambda x, w, b: (x, None, b),
        lambda x, w, b: (None, w, b),
        lambda x, w, b: (x, w, [1.0]),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
def test_errors_are_torchs(change: Callable[..., tuple[Any, ...]], grad: bool) -> None:
    arguments = change(*make(2, 12, 6, 6))
    with torch.set_grad_enabled(grad):
        with pytest.raises(Exception) as theirs:
            T.conv2d(*arguments, **({"groups": 12} if len(arguments) < 6 else {}))
        with pytest.raises(theirs.type) as ours:
            F.depthwise_conv2d(*arguments)
    assert str(ours.value).splitlines()[0][:40] == str(theirs.value).splitlines()[0][:40]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, w, b: (x[0], w, b, 1, 1), r"\(N, C, H, W\)"),
        (lambda x, w, b: (x.contiguous(), w, b, 1, 1), "channels_last"),
        (lambda x, w, b: (x.half(), w, b, 1, 1), "float32 or float64, got 16"),
        (lambda x, w, b: (x, w.double(), b, 1, 1), "weight has another dtype"),
        (lambda x, w, b: (x, w[:5], b, 1, 1), r"weight must be \(C, 1, k, k\) .* got 5, expected 12"),
        (lambda x, w, b: (x, w[..., :2], b, 1, 1), "weight must be"),
        (lambda x, w, b: (x, w[..., :1, :1].contiguous(), b, 1, 1), "3 x 3, 5 x 5, 7 x 7 or 9 x 9"),
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
    for grad in (x[:1], x.contiguous(), x.double(), x[:, :, :5]):
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


def test_autocast() -> None:
    x, w, b = make(2, 12, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert not depthwise_able(nn.Conv2d(12, 12, 3, groups=12), x)
        ours, theirs = F.depthwise_conv2d(x, w, b, 1, 1), stock(x, w, b, 1, 1)
    assert ours.dtype is torch.bfloat16 and torch.equal(ours, theirs)
    opswap.reset_stats()
    with torch.autocast("cpu", torch.bfloat16):
        output = F.depthwise_conv2d(x.detach(), w, b)
    output.float().sum().backward()
    assert not opswap.stats()["kernel"] and w.grad.dtype is torch.float32


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
        assert not depthwise_able(good, x.contiguous()) and not depthwise_able(good, x.double())
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
