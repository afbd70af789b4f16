# SPDX-License-Identifier: MIT
"""1 x 1 convolutions of contiguous images: as near to float64 as torch's, in its memory format, and which are ours."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as T
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from torch import Tensor, nn

import opswap
from counted import counts
from opswap import _core
from opswap import functional as F
from step import outputs_and_gradients
from test_pointwise import assert_near, kernels, run  # noqa: F401 (a fixture)
from threads import same_on_any_threads

LAST = torch.channels_last
BOTH = ({"pointwise_conv2d": 1, "pointwise_conv2d_backward": 1}, {})

# (N, C, H, W), outputs: tails of vectors, of tiles and of panels; passes of several images and over parts of one;
# several passes of the terms; parts of the images; small images that are joined.
SIZES = [
    ((1, 2, 1, 2), 1),
    ((2, 5, 3, 3), 2),
    ((1, 1, 4, 4), 3),
    ((1, 8, 5, 7), 8),
    ((2, 9, 4, 5), 17),
    ((3, 24, 7, 7), 23),
    ((2, 31, 5, 1), 33),
    ((2, 58, 11, 13), 58),
    ((1, 300, 4, 3), 49),
    ((37, 7, 7, 7), 25),
    ((70, 20, 2, 3), 31),
    ((2, 116, 23, 24), 116),
    ((1, 130, 40, 41), 2),
    ((1, 450, 3, 3), 270),
    ((1, 450, 3, 3), 300),
    ((2, 330, 9, 8), 400),
]


def inputs(
    size: tuple[int, ...], outputs: int, dtype: torch.dtype = torch.float32, last: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """last: the weight is in channels_last, and with it torch's output and the gradient of the input."""
    x, weight, bias = (torch.randn(s, dtype=dtype) for s in (size, (outputs, size[1], 1, 1), (outputs,)))
    weight = weight.to(memory_format=LAST if last else torch.contiguous_format)
    return x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


@pytest.mark.usefixtures("kernels")
class TestKernels:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("with_bias", [True, False])
    @pytest.mark.parametrize("last", [False, True])
    @pytest.mark.parametrize(("size", "outputs"), SIZES)
    def test_as_near_as_torch(
        self, size: tuple[int, ...], outputs: int, last: bool, with_bias: bool, dtype: torch.dtype
    ) -> None:
        tensors = inputs(size, outputs, dtype, last)
        tensors = tensors if with_bias else (*tensors[:2], None)
        opswap.reset_stats()
        ours = run(F.pointwise_conv2d, *tensors)
        assert counts() == BOTH
        assert_near(ours, tensors)
        wanted = LAST if last and size[1] > 1 else torch.contiguous_format
        assert all(t.is_contiguous(memory_format=wanted) for t in ours[:2])
        with torch.no_grad():
            assert torch.equal(F.pointwise_conv2d(*tensors), ours[0])

    @hypothesis_seed(20)
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(
        sizes=st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12)),
        outputs=st.integers(1, 40),
        cut=st.tuples(*[st.integers(0, 2)] * 3),
        last=st.booleans(),
        double=st.booleans(),
    )
    def test_any_size_and_slice(
        self, sizes: tuple[int, ...], outputs: int, cut: tuple[int, ...], last: bool, double: bool
    ) -> None:
        """Of images, planes and rows, read where they lie; torch's function is given a copy."""
        n, c, h, w = sizes
        dtype = torch.float64 if double else torch.float32
        i, j, k = cut
        whole = torch.randn((n + 2, c + 2, h + 2, w), dtype=dtype)
        x = whole[i : i + n, j : j + c, k : k + h].requires_grad_()
        _, weight, bias = inputs(sizes, outputs, dtype, last)
        opswap.reset_stats()
        y = F.pointwise_conv2d(x, weight, bias)
        assert counts() == ({"pointwise_conv2d": 1}, {}) or h * w == 1
        grad = (torch.arange(y.numel(), dtype=dtype) % 61 / 32 - 0.9375).view_as(y)
        ours = [y.detach(), *torch.autograd.grad(y, (x, weight, bias), grad)]
        assert_near(ours, (x.detach().contiguous().requires_grad_(), weight, bias), layouts=False)

    @pytest.mark.parametrize("kind", ["channels_last", "expanded", "strided", "sliced"])
    @pytest.mark.parametrize("last", [False, True])
    def test_any_gradient_of_the_output(self, kind: str, last: bool) -> None:
        x, weight, bias = inputs((2, 10, 5, 6), 12, last=last)
        opswap.reset_stats()
        y = F.pointwise_conv2d(x, weight, bias)
        grad = {
            "channels_last": torch.randn(2, 12, 5, 6).contiguous(memory_format=LAST),
            "expanded": torch.randn(1, 1, 1, 1).expand(2, 12, 5, 6),
            "strided": torch.randn(2, 12, 10, 6)[:, :, ::2],
            "sliced": torch.randn(2, 24, 5, 6)[:, 7:19],
        }[kind]
        ours = torch.autograd.grad(y, (x, weight, bias), grad)
        assert counts() == BOTH
        theirs = torch.autograd.grad(T.conv2d(x, weight, bias), (x, weight, bias), grad)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
            assert a.stride() == b.stride()

    @pytest.mark.parametrize(
        ("size", "outputs"),
        [((4, 58, 28, 28), 58), ((1, 232, 14, 14), 40), ((1, 200, 3, 3), 300), ((40, 3, 7, 7), 2)],
    )
    @pytest.mark.parametrize("last", [False, True])
    def test_the_same_bits_for_any_number_of_threads(
        self, size: tuple[int, ...], outputs: int, last: bool
    ) -> None:
        tensors = inputs(size, outputs, last=last)
        same_on_any_threads(lambda: run(F.pointwise_conv2d, *tensors), 5)

    @pytest.mark.parametrize("last", [False, True])
    def test_one_plane_in_place_of_all(self, last: bool) -> None:
        x = torch.randn(2, 1, 8, 8).expand(2, 16, 8, 8)
        _, weight, bias = inputs((2, 16, 8, 8), 9, last=last)
        opswap.reset_stats()
        ours, theirs = (f(x, weight, bias) for f in (F.pointwise_conv2d, T.conv2d))
        grad = torch.randn_like(theirs)
        gradients = [torch.autograd.grad(y, (weight, bias), grad) for y in (ours, theirs)]
        assert counts() == BOTH
        for a, b in zip((ours, *gradients[0]), (theirs, *gradients[1]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

    def test_nan_and_infinities_stay_where_they_are(self) -> None:
        x, weight, bias = (t.detach() for t in inputs((1, 9, 4, 5), 11))
        x[0, 2, 1, 3], x[0, 8, 3, 4] = float("nan"), float("inf")
        ours, theirs = F.pointwise_conv2d(x, weight, bias), T.conv2d(x, weight, bias)
        assert torch.equal(ours.isnan(), theirs.isnan()) and torch.equal(ours.isinf(), theirs.isinf())

    @pytest.mark.parametrize("size", [(3, 280, 12, 11), (9, 280, 3, 2)])
    def test_an_image_has_the_bits_that_it_has_alone(self, size: tuple[int, ...]) -> None:
        x, weight, bias = inputs(size, 300)
        output = F.pointwise_conv2d(x, weight, bias)
        gradient = torch.randn_like(output)
        output.backward(gradient)
        one = x[1:2].detach().requires_grad_()
        part = F.pointwise_conv2d(one, weight.detach(), bias.detach())
        part.backward(gradient[1:2])
        assert torch.equal(output[1:2], part) and torch.equal(x.grad[1:2], one.grad)

    def test_every_variant_is_counted(self) -> None:
        before = _core.pointwise_variants()
        for dtype in (torch.float32, torch.float64):
            run(F.pointwise_conv2d, *inputs((2, 6, 4, 5), 7, dtype))
        assert all(count > before[name] for name, count in _core.pointwise_variants().items())

    def test_second_derivatives(self) -> None:
        tensors = inputs((2, 3, 4, 2), 4, torch.float64)
        assert torch.autograd.gradgradcheck(F.pointwise_conv2d, tensors)
        assert torch.autograd.gradcheck(F.pointwise_conv2d, tensors)


# What torch computes: for each the tensors and the stride.
LEFT: dict[str, Any] = {
    "stride": lambda x, w, b: (x, w, b, 2),
    "strides": lambda x, w, b: (x, w, b, (1, 2)),
    "large weight": lambda x, w, b: (x.repeat(11, 60, 1, 1), torch.randn(400, 360, 1, 1), None, 1),
    "every second column": lambda x, w, b: (x[:, :, :, ::2], w, b, 1),
    "every second row": lambda x, w, b: (x[:, :, ::2], w, b, 1),
    "turned images": lambda x, w, b: (x.transpose(2, 3), w, b, 1),
    "no images": lambda x, w, b: (x[:0], w, b, 1),
    "unbatched": lambda x, w, b: (x[0], w, b, 1),
    "bfloat16": lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16(), 1),
    "turned weight": lambda x, w, b: (x, w[:6].transpose(0, 1), b[:6], 1),
}


@pytest.mark.parametrize("kind", LEFT)
def test_torch_serves_the_rest(kind: str) -> None:
    *tensors, stride = LEFT[kind](*(t.detach() for t in inputs((2, 6, 4, 6), 9)))
    leaves = [None if t is None else t.detach().requires_grad_() for t in tensors]
    opswap.reset_stats()
    ours, theirs = (f(*leaves, stride) for f in (F.pointwise_conv2d, T.conv2d))
    assert counts() == ({}, {"pointwise_conv2d": 1})
    assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def test_a_model_as_it_comes(kernels: None) -> None:  # noqa: F811
    """Its 1 x 1 convolutions run by the kernels where they were measured faster, and the report says why not."""
    stock = nn.Sequential(nn.Conv2d(3, 24, 1), nn.ReLU(), nn.Conv2d(24, 24, 1, stride=2), nn.Conv2d(24, 8, 1))
    model = opswap.swap(stock, inplace=False)
    x = torch.randn(2, 3, 8, 8)
    opswap.reset_stats()
    ours, theirs = (outputs_and_gradients(m, x) for m in (model, stock))
    assert counts()[0] == {"pointwise_conv2d": 2, "pointwise_conv2d_backward": 2}
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    (row,) = [o for o in opswap.explain(model, x).outcomes if (o.path, o.rule) == ("2", "pointwise_conv")]
    assert (row.result, "contiguous images without a stride" in row.reason) == ("original", True)


@pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="left to torch on this tier")
def test_large_weights() -> None:
    """Are replaced by the rule for dense convolutions; many small images are torch's, but not those of one pixel."""
    stock = nn.Conv2d(400, 330, 1)
    model = opswap.swap(nn.Sequential(copy.deepcopy(stock)))
    assert [s.rule for s in opswap.report(model).swapped] == ["conv2d"]
    sizes = {(2, 9, 8): True, (9, 7, 8): True, (10, 7, 8): False, (7, 1, 1): False, (8, 1, 1): True}
    for size, runs in sizes.items():
        x = torch.randn(size[0], 400, *size[1:])
        opswap.reset_stats()
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)
        assert counts()[0].get("pointwise_conv2d", 0) == runs, size
    last = copy.deepcopy(model).to(memory_format=LAST)
    opswap.reset_stats()
    y = last(torch.randn(9, 400, 7, 8))
    assert counts()[0]["pointwise_conv2d"] == 1 and y.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_model_has_an_open_batch(strict: bool) -> None:
    stock = nn.Sequential(nn.Conv2d(3, 12, 1), nn.MaxPool2d(4), nn.ReLU(), nn.Conv2d(12, 8, 1)).eval()
    model = opswap.swap(stock, inplace=False)
    batch = {0: torch.export.Dim("batch", min=2, max=64)}
    program = torch.export.export(model, (torch.randn(3, 3, 8, 8),), dynamic_shapes=(batch,), strict=strict)
    for n in (2, 7, 33):
        x = torch.randn(n, 3, 8, 8)
        torch.testing.assert_close(program.module()(x), stock(x))
