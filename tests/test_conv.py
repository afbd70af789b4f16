# SPDX-License-Identifier: MIT
"""Dense convolutions and their gradients: torch's values, layouts and errors; the same bits at any thread count."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
from inputs import same_bits
from nearness import assert_within_roundings
from opswap import _core
from opswap import functional as F
from opswap.ops import conv as family
from opswap.ops._stats import force_reference
from opswap.ops.conv import Directions, conv_able, conv_wins, why_kept

LAST = torch.channels_last
FLOATS = (torch.float32, torch.float64)
CHANNELS = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 33, 63, 64, 65)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit the tier to one that the public function uses the kernel on, for images of every size."""
    if "avx2" not in opswap.isa.available():
        pytest.skip("torch serves this tier")
    monkeypatch.setattr(family, "_FEWEST_PRODUCTS", 0)
    opswap.reset_stats()
    with opswap.isa.limit("avx2"):
        yield


def image(*size: int, dtype: torch.dtype = torch.float32, slices: bool = False) -> Tensor:
    """In channels_last; slices: of a tensor with more channels, rows and columns."""
    n, c, h, w = size
    if not slices:
        return torch.randn(size, dtype=dtype).contiguous(memory_format=LAST)
    return torch.randn(n, c + 3, h + 1, w + 2, dtype=dtype).contiguous(memory_format=LAST)[
        :, 1 : c + 1, 1:, 2:
    ]


def torchs(grad: Tensor, x: Tensor, w: Tensor, *window: Any) -> tuple[Tensor, Tensor, Tensor]:
    """torch's gradients of input, weight and bias."""
    options = ([v, v] if isinstance(v, int) else list(v) for v in window)
    return torch.ops.aten.convolution_backward(
        grad, x, w, [w.shape[0]], *options, False, [0, 0], 1, [True, True, True]
    )


def kernels(grad: Tensor, x: Tensor, w: Tensor, *window: Any) -> tuple[Tensor, Tensor, Tensor]:
    made = _core.plain_conv_backward(grad, x, w, *window, True, True, True)
    assert made is not NotImplemented
    return made


# The values of a sum of products, of their magnitudes and of their number.
CHANGES: tuple[Callable[[Tensor], Tensor], ...] = (lambda t: t, torch.abs, torch.ones_like)


def assert_output_close(x: Tensor, w: Tensor, *window: Any) -> None:
    """Outputs against float64, with and without bias."""
    for bias in (None, torch.randn(w.shape[0], dtype=x.dtype)):
        found = _core.plain_conv(x, w, bias, *window)
        if found is NotImplemented:  # torch's is in another format
            assert x.shape[1] == 1 or x.shape[2:] == (1, 1)
            continue
        expected = [
            T.conv2d(*(None if t is None else change(t.double()) for t in (x, w, bias)), *window)
            for change in CHANGES
        ]
        assert found is not NotImplemented and found.dtype == x.dtype
        assert found.is_contiguous(memory_format=LAST)
        assert_within_roundings(found, *expected, "output")


def assert_close(x: Tensor, w: Tensor, *window: Any, slices: bool = False) -> None:
    """Outputs and gradients against float64: as near as sums of that many products are."""
    assert_output_close(x, w, *window)
    shape = T.conv2d(x, w, None, *window).shape
    grad = image(*shape, dtype=x.dtype, slices=slices)
    truth, magnitudes, terms = (
        torchs(*(change(t.double()) for t in (grad, x, w)), *window) for change in CHANGES
    )
    made = kernels(grad, x, w, *window)
    assert torch.empty_like(w).stride() == made[1].stride()
    assert made[0].is_contiguous(memory_format=LAST)
    names = ("input", "weight", "bias")
    for name, found, *expected in zip(names, made, truth, magnitudes, terms, strict=True):
        assert found.dtype == x.dtype
        assert_within_roundings(found, *expected, name)
    for wanted in ((True, False, False), (False, True, False), (True, True, False), (False, True, True)):
        some = _core.plain_conv_backward(grad, x, w, *window, *wanted)
        for want, part, whole in zip(wanted, some, made, strict=True):
            assert same_bits(part, whole) if want else part is None
    assert _core.plain_conv_backward(grad, x, w, *window, False, False, True) is NotImplemented


def geometries(count: int, seed: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]]:
    """Sizes of input and weight and a window: channels around the widths of vectors, maps from one pixel on."""
    draw = random.Random(seed)
    while count:
        taps = [draw.choice((1, 1, 2, 3, 3, 4, 5, 13)) for _ in range(2)]
        size = [draw.randint(1, 14) for _ in range(2)]
        window = [[draw.randint(low, high) for _ in range(2)] for low, high in ((1, 3), (0, 4), (1, 2))]
        _, padding, dilation = window
        if any(s + 2 * p <= d * (t - 1) for s, p, d, t in zip(size, padding, dilation, taps, strict=True)):
            continue
        channels, outputs = draw.choice(CHANNELS), draw.choice(CHANNELS)
        yield (draw.randint(1, 9), channels, *size), (outputs, channels, *taps), tuple(map(tuple, window))
        count -= 1


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", range(4))
def test_every_geometry(tier: str, dtype: torch.dtype, seed: int) -> None:
    for i, (size, weight, window) in enumerate(geometries(24, seed)):
        memory_format = LAST if i % 3 else torch.contiguous_format
        w = torch.randn(weight, dtype=dtype).contiguous(memory_format=memory_format)
        assert_close(image(*size, dtype=dtype, slices=i % 2 == 0), w, *window, slices=i % 4 < 2)


@pytest.mark.parametrize(
    ("size", "weight", "window"),
    [
        ((3, 24, 40, 41), (17, 24, 3, 3), (1, 1, 1)),  # blocks that end before an image does
        ((19, 16, 7, 7), (33, 16, 3, 3), (1, 1, 1)),
        ((2, 65, 3, 700), (9, 65, 1, 3), (1, (0, 1), 1)),  # blocks that are narrower than an image
        ((40, 33, 8, 9), (70, 33, 1, 1), (1, 0, 1)),  # images that are joined
        ((4, 3, 37, 50), (64, 3, 7, 7), (2, 3, 1)),
        ((2, 64, 17, 19), (24, 64, 13, 1), (1, (6, 0), 1)),
        ((2, 64, 9, 9), (512, 64, 3, 3), (2, 1, 1)),  # one part
    ],
)
@pytest.mark.parametrize("slices", [False, True])
def test_larger_maps(
    tier: str, size: tuple[int, ...], weight: tuple[int, ...], window: Any, slices: bool
) -> None:
    assert_close(image(*size, slices=slices), torch.randn(weight).contiguous(memory_format=LAST), *window)


@pytest.mark.parametrize(
    ("size", "weight", "window"),
    [
        ((9, 24, 20, 21), (40, 24, 3, 3), (1, 1, 1)),
        ((9, 3, 40, 41), (64, 3, 3, 3), (2, 1, 1)),
        ((16, 64, 14, 14), (96, 64, 1, 1), (1, 0, 1)),
        ((2, 128, 9, 9), (300, 128, 3, 3), (1, 1, 1)),  # one part, whose outputs the threads share
    ],
)
def test_bits_do_not_depend_on_threads(
    tier: str, size: tuple[int, ...], weight: tuple[int, ...], window: Any
) -> None:
    x, w = image(*size), torch.randn(weight).contiguous(memory_format=LAST)
    grad = image(*T.conv2d(x, w, None, *window).shape)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append((_core.plain_conv(x, w, None, *window), *kernels(grad, x, w, *window)))
    finally:
        torch.set_num_threads(before)
    for one, two, three in zip(*results, strict=True):
        assert same_bits(one, two) and same_bits(one, three)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("channels", [(11, 18), (18, 11), (3, 40), (70, 20)])
def test_non_finite_values_stay_where_they_belong(tier: str, value: float, channels: tuple[int, int]) -> None:
    """In the input and in the gradient: other channels are not touched, and padding is no zero times infinity."""
    c, o = channels
    for at in range(2):
        x, w = image(1, c, 6, 7), torch.randn(o, c, 3, 3).contiguous(memory_format=LAST)
        grad = image(1, o, 6, 7)
        finite = kernels(grad, x, w, 1, 1, 1)[1:]
        (x, grad)[at][0, 2, 0, 0] = value
        found = kernels(grad, x, w, 1, 1, 1)[1:]
        reached = torch.zeros(o, c, 3, 3, dtype=torch.bool)
        reached.movedim(1 - at, 0)[2, :, 1:, 1:] = True  # of the first pixel the taps to the right and below
        if at == 0:
            reached.zero_()[:, 2, :2, :2] = True
        assert torch.equal(~found[0].isfinite(), reached)
        assert torch.equal(found[0][~reached], finite[0][~reached])
        assert (~found[1].isfinite()).nonzero().flatten().tolist() == ([2] if at else [])


def test_every_variant_was_run() -> None:
    for dtype in FLOATS:
        assert_close(image(2, 9, 4, 5, dtype=dtype), torch.randn(4, 9, 3, 3, dtype=dtype), 1, 1, 1)
    assert all(_core.conv_variants().values())


@pytest.mark.parametrize(
    "change",
    [
        lambda g, x, w: (g, x, w.half(), 1, 1, 1),
        lambda g, x, w: (g.double(), x, w, 1, 1, 1),
        lambda g, x, w: (g, x.double(), w, 1, 1, 1),
        lambda g, x, w: (g.half(), x.half(), w.half(), 1, 1, 1),
        lambda g, x, w: (g.contiguous(), x, w, 1, 1, 1),
        lambda g, x, w: (g, x.contiguous(), w, 1, 1, 1),
        lambda g, x, w: (g, x, w.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2), 1, 1, 1),
        lambda g, x, w: (g, x[0], w, 1, 1, 1),
        lambda g, x, w: (g[:1], x, w, 1, 1, 1),
        lambda g, x, w: (g[:, :5], x, w, 1, 1, 1),
        lambda g, x, w: (g[:, :, 1:], x, w, 1, 1, 1),
        lambda g, x, w: (g[:, :, :, 1:], x, w, 1, 1, 1),
        lambda g, x, w: (g, x[:, 1:], w, 1, 1, 1),
        lambda g, x, w: (g[:0], x[:0], w, 1, 1, 1),
        lambda g, x, w: (g, x, w[:0], 1, 1, 1),
        lambda g, x, w: (g, x, w, 2, 1, 1),
        lambda g, x, w: (g, x, w, 0, 1, 1),
        lambda g, x, w: (g, x, w, 1, -1, 1),
        lambda g, x, w: (g, x, w, 1, 1, 0),
        lambda g, x, w: (g, x, w, 1, 2**31, 1),
        lambda g, x, w: (g, x, w, 1, 1, 2**31 - 1),
        lambda g, x, w: (g, x, w, True, 1, 1),
        lambda g, x, w: (g, x, w, 1.0, 1, 1),
        lambda g, x, w: (g, x, w, (1, 1, 1), 1, 1),
        lambda g, x, w: (g, x, w, (), 1, 1),
        lambda g, x, w: (g, x, w, 1, "same", 1),
        lambda g, x, w: (None, x, w, 1, 1, 1),
        lambda g, x, w: (g, x, [w], 1, 1, 1),
        lambda g, x, w: (g.to_sparse(), x, w, 1, 1, 1),
        lambda g, x, w: (g, x.to("meta"), w, 1, 1, 1),
    ],
)
def test_the_extension_checks_for_itself(change: Callable[..., tuple[Any, ...]]) -> None:
    g, x, w = image(2, 12, 6, 7), image(2, 9, 6, 7), torch.randn(12, 9, 3, 3)
    assert _core.plain_conv_backward(*change(g, x, w), True, True, True) is NotImplemented
    assert _core.plain_conv_backward(g, x, w, 1, 1, 1, True) is NotImplemented
    kernels(g, x, w, 1, 1, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: (x, w.half(), b, 1, 1, 1),
        lambda x, w, b: (x.double(), w, b, 1, 1, 1),
        lambda x, w, b: (x, w, b.double(), 1, 1, 1),
        lambda x, w, b: (x, w, b[:5], 1, 1, 1),
        lambda x, w, b: (x, w, b[:, None], 1, 1, 1),
        lambda x, w, b: (x, w, torch.randn(24)[::2], 1, 1, 1),
        lambda x, w, b: (x.contiguous(), w, b, 1, 1, 1),
        lambda x, w, b: (x[0], w, b, 1, 1, 1),
        lambda x, w, b: (x[:0], w, b, 1, 1, 1),
        lambda x, w, b: (x[:, 1:], w, b, 1, 1, 1),
        lambda x, w, b: (x[:, :, :1], w, b, 1, 0, 1),
        lambda x, w, b: (x, w[:0], b, 1, 1, 1),
        lambda x, w, b: (x, w, b, 0, 1, 1),
        lambda x, w, b: (x, w, b, 1, -1, 1),
        lambda x, w, b: (x, w, b, 1, 1, 0),
        lambda x, w, b: (x, w, b, 1, "same", 1),
        lambda x, w, b: (x, w, [1.0], 1, 1, 1),
        lambda x, w, b: (None, w, b, 1, 1, 1),
        lambda x, w, b: (x, w, b, 1, 1),
    ],
)
def test_the_forward_checks_for_itself(change: Callable[..., tuple[Any, ...]]) -> None:
    x, w, b = image(2, 9, 6, 7), torch.randn(12, 9, 3, 3), torch.randn(12)
    assert _core.plain_conv(*change(x, w, b)) is NotImplemented
    assert _core.plain_conv(x, w, b, 1, 1, 1) is not NotImplemented


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("channels", [(3, 40), (18, 11)])
def test_padding_has_no_terms(tier: str, value: float, channels: tuple[int, int]) -> None:
    """An infinite weight reaches the pixels of its tap alone: what lies outside of the image is no zero."""
    c, o = channels
    x, w = image(1, c, 5, 6), torch.randn(o, c, 3, 3)
    w[1, 2, 0, 2] = value
    reached = torch.zeros(1, o, 5, 6, dtype=torch.bool)
    reached[0, 1, 1:, :-1] = True
    assert torch.equal(~_core.plain_conv(x, w, None, 1, 1, 1).isfinite(), reached)
    of_input = kernels(image(1, o, 5, 6), x, w, 1, 1, 1)[0]
    reached = torch.zeros(1, c, 5, 6, dtype=torch.bool)
    reached[0, 2, :-1, 1:] = True
    assert torch.equal(~of_input.isfinite(), reached)


def test_too_many_taps() -> None:
    for taps, taken in (((13, 13), True), ((14, 1), False), ((1, 14), False)):
        x, w = image(1, 16, 14, 14), torch.randn(16, 16, *taps)
        grad = image(*T.conv2d(x, w).shape)
        wanted = (True, True, False)
        assert (_core.plain_conv_backward(grad, x, w, 1, 0, 1, *wanted) is not NotImplemented) == taken
        assert (_core.plain_conv(x, w, None, 1, 0, 1) is not NotImplemented) == taken


# The public function.


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
    assert opswap.stats()["kernel"]["conv2d_backward"] == 1
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
    assert opswap.stats()["kernel"]["conv2d_backward"] == 3


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
    assert not opswap.stats()["kernel"].get("conv2d_backward")


@pytest.mark.parametrize(
    "change",
    [
        lambda x, w, b: (x, w, b, 0),
        lambda x, w, b: (x, w, b, 1, -1),
        lambda x, w, b: (x, w, b, 1, 0, 0),
        lambda x, w, b: (x, w, b[:5]),
        lambda x, w, b: (x, w[:, :6], b),
        lambda x, w, b: (x[:, :, :2, :2], w, b),
        lambda x, w, b: (x, w.double(), b),
        lambda x, w, b: (x, w, b.double()),
        lambda x, w, b: (x, w, b, 1.5),
        lambda x, w, b: (x, w, b, (1, 1, 1)),
        lambda x, w, b: (x, w, b, 1, "other"),
        lambda x, w, b: (x, None, b),
        lambda x, w, b: (None, w, b),
        lambda x, w, b: (x, w, [1.0]),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.usefixtures("served")
def test_errors_are_torchs(change: Callable[..., tuple[Any, ...]], grad: bool) -> None:
    arguments = change(*leaves_of())
    with torch.set_grad_enabled(grad):
        with pytest.raises(Exception) as theirs:
            T.conv2d(*arguments)
        with pytest.raises(theirs.type) as ours:
            F.conv2d(*arguments)
    assert str(ours.value).splitlines()[0][:40] == str(theirs.value).splitlines()[0][:40]


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
    assert not opswap.stats()["kernel"].get("conv2d_backward")


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
    assert not opswap.stats()["kernel"].get("conv2d_backward")


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
    assert opswap.stats()["kernel"]["conv2d_backward"] == 2


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
    tensors = leaves_of()
    for i, t in enumerate(tensors):
        t.requires_grad_(not frozen >> i & 1)
    leaves = [t for t in tensors if t.requires_grad]
    results = [torch.autograd.grad(f(*tensors, 1, 1).sin().sum(), leaves) for f in (F.conv2d, T.conv2d)]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


class TestCosts:
    def test_forward_and_data_gradient(self) -> None:
        if "avx512" not in opswap.isa.available():
            pytest.skip("this machine has no avx512")
        with opswap.isa.limit("avx512"):
            assert family._directions_of("avx512", 64, 64, 3, 1) == (True, True, True)
            assert family._directions_of("avx512", 3, 64, 3, 3) == (True, False, True)
            assert family._directions_of("avx512", 32, 32, 3, 1) == (False, False, True)
            assert family._directions_of("avx512", 256, 256, 3, 3) == (False, False, True)
        assert family._directions_of("avx2", 64, 64, 3, 1) == (False, False, True)

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
