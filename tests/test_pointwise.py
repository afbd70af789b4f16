# SPDX-License-Identifier: MIT
"""1 x 1 convolutions: as near to float64 as torch's, in its memory format, and torch's own for what is not ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from torch import Tensor

import opswap
from counted import counts
from inputs import layout_of
from nearness import assert_within_roundings
from opswap import functional as F
from opswap.ops import pointwise, reduced_precision
from step import assert_same_error
from surviving import survive
from threads import same_on_any_threads

LAST = torch.channels_last

# (N, C, H, W), outputs: tails of vectors, of tiles and of panels, several blocks of terms,
# several parts of rows.
SIZES = [
    ((1, 2, 1, 2), 1),
    ((2, 5, 3, 3), 2),
    ((1, 8, 5, 7), 8),
    ((2, 9, 4, 5), 17),
    ((3, 24, 7, 5), 23),
    ((2, 31, 5, 5), 33),
    ((2, 58, 11, 13), 58),
    ((1, 300, 4, 3), 49),
    ((1, 7, 25, 22), 25),
    ((2, 116, 23, 24), 116),
    ((1, 130, 40, 41), 2),
    ((1, 520, 3, 3), 270),
]


@pytest.fixture
def kernels(tier: str) -> None:
    """Run the test on every tier whose kernels convolve."""
    if not pointwise.pointwise_wins():
        pytest.skip(f"{tier} leaves convolutions to torch")


# (N, C, H, W), outputs, stride: lines that fill tiles, lines of one pixel, a last line and pixel with others behind it
# or none, parts of rows that begin in a line, dot products, one or two outputs, several blocks of terms.
STRIDES = [
    ((2, 9, 6, 8), 17, (2, 2)),
    ((2, 9, 7, 9), 17, (2, 2)),
    ((1, 24, 14, 14), 24, 2),
    ((3, 3, 12, 13), 48, [2, 2]),
    ((1, 16, 5, 7), 16, (1, 3)),
    ((2, 31, 7, 5), 33, (3, 1)),
    ((4, 8, 3, 2), 8, (2, 2)),
    ((2, 40, 2, 2), 20, (5, 5)),
    ((2, 6, 9, 11), 1, (2, 2)),
    ((2, 6, 9, 11), 2, (2, 3)),
    ((1, 64, 3, 5), 9, (2, 2)),
    ((2, 5, 71, 73), 33, (2, 2)),
    ((1, 300, 9, 10), 270, (2, 2)),
]


def inputs(
    size: tuple[int, ...], outputs: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(size, dtype=dtype).contiguous(memory_format=LAST)
    weight = torch.randn(outputs, size[1], 1, 1, dtype=dtype) / size[1] ** 0.5
    return x.requires_grad_(), weight.requires_grad_(), torch.randn(outputs, dtype=dtype, requires_grad=True)


def run(
    function: Callable[..., Tensor],
    *tensors: Tensor | None,
    change: Callable[[Tensor], Tensor] = lambda t: t,
) -> list[Tensor]:
    """The output and all gradients, for a gradient of the output that `change` is applied to."""
    tensors = [None if t is None else t.detach().clone().requires_grad_() for t in tensors]
    y = function(*tensors)
    # Values of few bits, so that they are the same in every dtype.
    grad = change((torch.arange(y.numel(), dtype=y.dtype) % 61 / 32 - 0.9375).view_as(y))
    return [y.detach(), *torch.autograd.grad(y, [t for t in tensors if t is not None], grad)]


def assert_near(
    ours: list[Tensor],
    tensors: Sequence[Tensor | None],
    stock: Callable[..., Tensor] = T.conv2d,
    layouts: bool = True,
) -> None:
    """Kind and layout of torch's results; as near to float64 as sums of that many products are."""
    # Of contiguous copies: in channels_last, torch 2.13 writes beyond the gradient of a weight of few channels.
    copies = [t if t is None or stock is T.conv2d else t.detach().contiguous() for t in tensors]
    for a, b in zip(ours, run(stock, *copies), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert not layouts or stock is not T.conv2d or layout_of(a) == layout_of(b)
    expected = (
        run(stock, *(None if t is None else change(t.detach().double()) for t in copies), change=change)
        for change in (lambda t: t, torch.abs, torch.ones_like)
    )
    for i, quantity in enumerate(zip(ours, *expected, strict=True)):
        assert_within_roundings(*quantity, i)


@pytest.mark.usefixtures("kernels")
class TestKernels:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("with_bias", [True, False])
    @pytest.mark.parametrize(("size", "outputs"), SIZES)
    def test_as_near_as_torch(
        self, size: tuple[int, ...], outputs: int, with_bias: bool, dtype: torch.dtype
    ) -> None:
        tensors = inputs(size, outputs, dtype)
        tensors = tensors if with_bias else (*tensors[:2], None)
        opswap.reset_stats()
        ours = run(F.pointwise_conv2d, *tensors)
        assert counts() == ({"pointwise_conv2d": 1, "pointwise_conv2d_backward": 1}, {})
        assert_near(ours, tensors)
        assert ours[0].is_contiguous(memory_format=LAST) and ours[1].is_contiguous(memory_format=LAST)
        with torch.no_grad():
            assert torch.equal(F.pointwise_conv2d(*tensors), ours[0])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("with_bias", [True, False])
    @pytest.mark.parametrize(("size", "outputs", "stride"), STRIDES)
    def test_strides(
        self, size: tuple[int, ...], outputs: int, stride: Any, with_bias: bool, dtype: torch.dtype
    ) -> None:
        tensors = inputs(size, outputs, dtype)
        tensors = tensors if with_bias else (*tensors[:2], None)
        opswap.reset_stats()
        ours = run(partial(F.pointwise_conv2d, stride=stride), *tensors)
        assert counts() == ({"pointwise_conv2d": 1, "pointwise_conv2d_backward": 1}, {})
        assert_near(ours, tensors, partial(T.conv2d, stride=stride))
        assert ours[0].is_contiguous(memory_format=LAST) and ours[1].is_contiguous(memory_format=LAST)
        rows, columns = (stride, stride) if isinstance(stride, int) else stride
        read = torch.zeros(size[2:], dtype=torch.bool)
        read[::rows, ::columns] = True
        assert torch.equal(ours[1][:, :, ~read], torch.zeros_like(ours[1][:, :, ~read]))
        with torch.no_grad():
            assert torch.equal(F.pointwise_conv2d(*tensors, stride), ours[0])

    @hypothesis_seed(20)
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        sizes=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12)),
        outputs=st.integers(1, 40),
        stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
        cut=st.tuples(*[st.integers(0, 2)] * 3),
        double=st.booleans(),
    )
    def test_any_size_stride_and_slice(
        self,
        sizes: tuple[int, ...],
        outputs: int,
        stride: tuple[int, int],
        cut: tuple[int, ...],
        double: bool,
    ) -> None:
        """Read where they lie in a wider tensor; torch's function is given a copy."""
        n, c, h, w = sizes
        dtype = torch.float64 if double else torch.float32
        whole, _, _ = inputs((n, c + 2, h + 2, w + 2), outputs, dtype)
        _, weight, bias = inputs(sizes, outputs, dtype)
        i, j, k = cut
        x = whole.detach()[:, i : i + c, j : j + h, k : k + w].requires_grad_()
        opswap.reset_stats()
        y = F.pointwise_conv2d(x, weight, bias, stride)
        grad = (torch.arange(y.numel(), dtype=dtype) % 61 / 32 - 0.9375).view_as(y)
        ours = [y.detach(), *torch.autograd.grad(y, (x, weight, bias), grad)]
        taken = counts()
        assert taken == ({"pointwise_conv2d": 1, "pointwise_conv2d_backward": 1}, {}) or min(c, h * w) == 1
        dense = x.detach().contiguous(memory_format=LAST).requires_grad_()
        assert_near(ours, (dense, weight, bias), partial(T.conv2d, stride=stride), layouts=False)

    def test_slices_of_channels_and_of_images(self) -> None:
        whole, weight, bias = inputs((4, 20, 6, 5), 9)
        for x in (whole[:, 3:15], whole[1:3, :12], whole[:, 8:]):
            x = x.detach()
            opswap.reset_stats()
            ours = F.pointwise_conv2d(x, weight[:, :12].detach().contiguous(), bias.detach())
            assert counts() == ({"pointwise_conv2d": 1}, {})
            torch.testing.assert_close(ours, T.conv2d(x, weight[:, :12], bias).detach())

    @pytest.mark.parametrize("steps", [(1, 1), (1, 5), (2, 1)])
    @pytest.mark.parametrize("channels", [(1, 1), (5, 1), (1, 4), (5, 4)])
    @pytest.mark.parametrize("images", [1, 3])
    def test_one_pixel(self, images: int, channels: tuple[int, int], steps: tuple[int, int]) -> None:
        """As an average over the image gives it: with its strides it may be in either format."""
        terms, outputs = channels
        factor, step = steps
        values = torch.randn(images * factor * terms)
        x = values.as_strided((images, terms, 1, 1), (factor * terms, 1, step, step)).requires_grad_()
        for last in (True, False):
            across = terms if last else 1
            weight = torch.randn(outputs * terms).as_strided(
                (outputs, terms, 1, 1), (terms, 1, across, across)
            )
            weight.requires_grad_()
            bias = torch.randn(outputs, requires_grad=True)
            opswap.reset_stats()
            ours, theirs = (f(x, weight, bias) for f in (F.pointwise_conv2d, T.conv2d))
            if min(terms, outputs) > 1:
                assert counts() == ({"pointwise_conv2d": 1}, {})
            assert ours.stride() == theirs.stride()
            grad = torch.randn_like(theirs)
            gradients = (torch.autograd.grad(y, (x, weight, bias), grad) for y in (ours, theirs))
            for a, b in zip(*gradients, strict=True):
                # Strides along a size of 1 depend on the CPU: torch has several ways to these gradients.
                strides = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (a, b)]
                assert strides[0] == strides[1]
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            if min(terms, outputs) > 1:
                assert counts() == ({"pointwise_conv2d": 1, "pointwise_conv2d_backward": 1}, {})

    @pytest.mark.parametrize("kind", ["contiguous", "expanded", "strided"])
    def test_any_gradient_of_the_output(self, kind: str) -> None:
        x, weight, bias = inputs((2, 10, 5, 6), 12)
        y = F.pointwise_conv2d(x, weight, bias)
        grad = {
            "contiguous": torch.randn(2, 12, 5, 6),
            "expanded": torch.randn(1, 1, 1, 1).expand(2, 12, 5, 6),
            "strided": torch.randn(2, 24, 5, 6).contiguous(memory_format=LAST)[:, ::2],
        }[kind]
        ours = torch.autograd.grad(y, (x, weight, bias), grad)
        theirs = torch.autograd.grad(T.conv2d(x, weight, bias), (x, weight, bias), grad)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("memory_format", [LAST, torch.contiguous_format])
    @pytest.mark.parametrize("frozen", range(1, 8))
    def test_only_what_is_needed(self, frozen: int, memory_format: torch.memory_format) -> None:
        tensors = [t.detach() for t in inputs((1, 6, 4, 4), 7)]
        tensors[0] = tensors[0].contiguous(memory_format=memory_format)
        for i, t in enumerate(tensors):
            t.requires_grad_(not frozen >> i & 1)
        y = F.pointwise_conv2d(*tensors)
        assert y.requires_grad is (frozen != 7)
        if frozen != 7:
            y.sum().backward()
        truth = T.conv2d(*tensors)
        for i, t in enumerate(tensors):
            assert (t.grad is None) == bool(frozen >> i & 1)
            if t.grad is not None:
                torch.testing.assert_close(t.grad, torch.autograd.grad(truth.sum(), t, retain_graph=True)[0])

    @pytest.mark.parametrize(
        ("size", "outputs"), [((4, 58, 28, 28), 58), ((2, 232, 7, 7), 40), ((9, 3, 30, 31), 2)]
    )
    @pytest.mark.parametrize("stride", [1, (2, 3)])
    def test_the_same_bits_for_any_number_of_threads(
        self, size: tuple[int, ...], outputs: int, stride: Any
    ) -> None:
        tensors = inputs(size, outputs)
        same_on_any_threads(lambda: run(partial(F.pointwise_conv2d, stride=stride), *tensors), 5)

    def test_nan_and_infinities_stay_where_they_are(self) -> None:
        x, weight, bias = (t.detach() for t in inputs((1, 9, 4, 5), 11))
        x[0, 2, 1, 3], x[0, 8, 3, 4] = float("nan"), float("inf")
        ours, theirs = F.pointwise_conv2d(x, weight, bias), T.conv2d(x, weight, bias)
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())

    def test_weight_in_channels_last(self) -> None:
        x, weight, bias = inputs((2, 6, 5, 4), 8)
        last = weight.detach().contiguous(memory_format=LAST).requires_grad_()
        (ours,) = torch.autograd.grad(F.pointwise_conv2d(x, last, bias).square().sum(), last)
        (theirs,) = torch.autograd.grad(T.conv2d(x, last, bias).square().sum(), last)
        torch.testing.assert_close(ours, theirs)
        assert ours.stride()[:2] == theirs.stride()[:2]


SERVED = {
    "contiguous": lambda x, w, b: (x.contiguous(), w, b),
    "unbatched": lambda x, w, b: (x[0], w, b),
    "bfloat16": lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16()),
    "one channel": lambda x, w, b: (x[:, :1].contiguous(memory_format=LAST), w[:, :1], b),
    "no images": lambda x, w, b: (x[:0], w, b),
    "every second column": lambda x, w, b: (x[:, :, :, ::2], w, b),
    "padding in memory": lambda x, w, b: (x[:, :, 1:], w, b),
    "turned weight": lambda x, w, b: (x, w.expand(6, 6, 1, 1).transpose(0, 1), b[:6]),
}


@pytest.mark.parametrize("kind", SERVED)
def test_torch_serves_the_rest(kind: str) -> None:
    x, weight, bias = (t.detach() for t in inputs((2, 6, 4, 6), 6))
    tensors = SERVED[kind](x, weight[:, :1] if kind == "turned weight" else weight, bias)
    theirs = T.conv2d(*tensors)
    ours = F.pointwise_conv2d(*tensors)
    torch.testing.assert_close(ours, theirs)
    assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("stride", [0, (2, -1), (1, 1, 1), 1.5, None, "2"])
@pytest.mark.parametrize("grad", [True, False])
def test_strides_that_torch_refuses(stride: Any, grad: bool) -> None:
    tensors = [t.detach().requires_grad_(grad) for t in inputs((2, 6, 4, 4), 4)]
    assert_same_error(lambda: F.pointwise_conv2d(*tensors, stride), lambda: T.conv2d(*tensors, stride), 60)


FIRST_OF_REPVGG = """
from torch import nn
stock = nn.Sequential(nn.Conv2d(3, 48, 1, stride=2), nn.BatchNorm2d(48), nn.ReLU())
model = opswap.swap(stock, memory_format=torch.channels_last)
opswap.reset_stats()
for _ in range(20):
    x = torch.randn(4, 3, 96, 96).contiguous(memory_format=torch.channels_last)
    model(x).sum().backward()
    rest = [torch.randn(n, 48) for n in range(1, 50)]
found = opswap.stats()
assert found["kernel"]["pointwise_conv2d_backward"] == 20 and not found["reference"], found
"""


def test_the_heap_stays_whole(kernels: None) -> None:
    """torch 2.13 writes beyond a buffer in the backward of this convolution, on CPUs with AVX-512."""
    survive(FIRST_OF_REPVGG)


@pytest.mark.parametrize(
    ("weight", "bias"),
    [((4, 5, 1, 1), None), ((4, 6, 1, 1), (3,)), ((4, 6, 1, 1), (4, 1)), ((0, 6, 1, 1), (2,))],
)
def test_sizes_that_do_not_fit(weight: tuple[int, ...], bias: tuple[int, ...] | None) -> None:
    x = torch.randn(2, 6, 4, 4).contiguous(memory_format=LAST)
    tensors = (x, torch.randn(weight), None if bias is None else torch.randn(bias))
    error = assert_same_error(lambda: F.pointwise_conv2d(*tensors), lambda: T.conv2d(*tensors))
    assert type(error) is RuntimeError


def test_larger_kernels_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"must be \(out, in, 1, 1\), got \(4, 6, 3, 3\)"):
        F.pointwise_conv2d(torch.randn(1, 6, 4, 4), torch.randn(4, 6, 3, 3))


@pytest.mark.parametrize("slow", [False, True])
def test_a_layer_under_autocast(kernels: None, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is torch's own where the CPU computes 16 bits fast."""
    for name in ("SLOW", "SLOW_DEPTHWISE"):
        monkeypatch.setattr(reduced_precision, name, frozenset([torch.bfloat16] if slow else []))
    x, *_ = inputs((3, 6, 4, 5), 7)
    layer = torch.nn.Conv2d(6, 7, 1)
    swapped = opswap.swap(torch.nn.Sequential(layer), memory_format=LAST)
    opswap.reset_stats()
    with torch.autocast("cpu", torch.bfloat16):
        assert swapped(x).dtype is torch.bfloat16
    in_float32 = {"conv2d": 1} if slow else {}
    assert counts() == (in_float32, {})
    swapped(x)
    assert counts() == ({**in_float32, "pointwise_conv2d": 1}, {})


def test_forced_reference() -> None:
    x, weight, bias = inputs((1, 6, 4, 5), 7)
    opswap.reset_stats()
    with opswap.force_reference():
        assert torch.equal(F.pointwise_conv2d(x, weight, bias), T.conv2d(x, weight, bias))
    assert counts() == ({}, {"pointwise_conv2d": 1})


@pytest.mark.parametrize("stride", [1, (1, 1), [1, 1], 2, (1, 3), [2, 1]])
@pytest.mark.parametrize("padding", [0, (0, 0), [0, 0]])
def test_every_spelling_of_conv2d(kernels: None, stride: object, padding: object) -> None:
    x, weight, bias = inputs((3, 6, 4, 5), 7)
    opswap.reset_stats()
    F.conv2d(x, weight, bias, stride, padding)
    assert counts() == ({"pointwise_conv2d": 1}, {})


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_go_by_blocks(dtype: torch.dtype) -> None:
    """Several passes over the terms and blocks of rows: a row has the bits that it has in a smaller product."""
    x = torch.randn(2, 530, 30, 41, dtype=dtype).contiguous(memory_format=LAST)
    weight, bias = torch.randn(300, 530, 1, 1, dtype=dtype), torch.randn(300, dtype=dtype)
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    output = F.pointwise_conv2d(*leaves)
    gradient = torch.randn(2, 300, 30, 41, dtype=dtype).contiguous(memory_format=LAST)
    output.backward(gradient)
    few = [
        t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x[1:], weight, bias)
    ]
    part = F.pointwise_conv2d(*few)
    part.backward(gradient[1:])
    assert torch.equal(output[1:], part) and torch.equal(x.grad[1:], few[0].grad)
    wide = [t.detach().double() for t in leaves]
    torch.testing.assert_close(output.double(), T.conv2d(*wide), rtol=1e-4, atol=1e-4)
    expected = torch.einsum("nohw,oi->nihw", gradient.double(), wide[1][:, :, 0, 0])
    torch.testing.assert_close(x.grad.double(), expected, rtol=1e-4, atol=1e-4)
