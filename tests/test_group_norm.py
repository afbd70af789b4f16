# SPDX-License-Identifier: MIT
"""Group and instance normalisation against float64 and torch: values, gradients, layouts, threads, errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

import opswap
from inputs import LAYOUTS, channels_last_of
from norm_steps import DISTANCES, assert_close, step, vectors
from opswap import _core
from opswap import functional as F
from opswap.ops.norm import group_norm_fits, instance_norm_fits
from step import assert_same_error
from threads import same_on_any_threads

# Channels around the widths of vectors and beyond, positions from a few to many, both numbers of dimensions.
SIZES = (
    (2, 3, 1, 2),
    (3, 8, 7, 7),
    (2, 17, 28, 28),
    (2, 30, 7, 7),
    (5, 32, 1, 7),
    (2, 58, 14, 3),
    (1, 64, 28, 28),
    (2, 1100, 3, 3),
    (70, 4, 5, 5),
    (2, 6, 3, 4, 5),
    (2, 32, 2, 7, 7),
)


def groups_of(channels: int) -> list[int]:
    """1, C, and what lies between them."""
    divisors = [g for g in range(1, channels + 1) if channels % g == 0]
    return sorted({divisors[0], divisors[len(divisors) // 2], divisors[-1]})


def image(size: tuple[int, ...], dtype: torch.dtype, mean: float = 1.0, deviation: float = 2.0) -> Tensor:
    """In channels_last; every channel has a mean of its own."""
    own = torch.randn(1, size[1], *(1 for _ in size[2:])) * deviation
    x = (torch.randn(size) * deviation + own + mean).to(dtype)
    return x.contiguous(memory_format=channels_last_of(len(size)))


def truth(groups: int, grad: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """In float64 by torch, contiguous; its backward needs a weight if there is a bias."""
    wide = [None if t is None else t.double().contiguous() for t in tensors]
    ones = torch.ones(tensors[0].shape[1], dtype=torch.float64)
    return step(
        lambda x, w, b: T.group_norm(x, groups, ones if w is None else w, b),
        grad.double().contiguous(),
        *wide,
    )


@pytest.fixture
def kernels_only() -> Iterator[None]:
    """Fail if a call of the test ran torch's function."""
    opswap.reset_stats()
    yield
    assert not opswap.stats()["reference"]


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.parametrize("dtype", DISTANCES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_float64(size: tuple[int, ...], dtype: torch.dtype, tier: str) -> None:
    kinds = {dtype, torch.float32 if dtype.itemsize == 2 else dtype}
    for groups, kind in itertools.product(groups_of(size[1]), kinds):
        if groups == size[1] and torch.Size(size[2:]).numel() < 3:
            continue  # of two values the gradient is next to nothing, and rounding all of it
        x, parameters = image(size, dtype), vectors(size[1], kind)
        grad = torch.randn_like(x)
        want = truth(groups, grad, x, *parameters)
        got = step(lambda x, w, b, g=groups: F.group_norm(x, g, w, b), grad, x, *parameters)
        for a, b in zip(got, want, strict=True):
            assert_close(a, b)
        assert got[0].dtype is dtype and got[0].stride() == got[1].stride() == x.stride()
        assert got[2].dtype is got[3].dtype is kind


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [(4, 32, 28, 28), (1, 6, 100, 90), (2, 256, 7, 7), (1, 8, 7, 7)], ids=str)
def test_far_means(size: tuple[int, ...], seed: int, tier: str) -> None:
    """Where E[x^2] - E[x]^2 has no digit left, also if the channels of a group differ little from each other."""
    torch.manual_seed(seed)
    for groups in groups_of(size[1]):
        x = image(size, torch.float32, 1000.0, 0.01)
        grad, parameters = torch.randn_like(x), vectors(size[1], torch.float32)
        want = truth(groups, grad, x, *parameters)
        got = step(lambda x, w, b, g=groups: F.group_norm(x, g, w, b), grad, x, *parameters)
        for a, b in zip(got, want, strict=True):
            assert_close(a, b)


def test_statistics(tier: str) -> None:
    """Of groups whose channels lie far apart, good to float64's precision but for x - K in float."""
    offsets = torch.tensor([0.0, 1000.0, -300.0, 1.0, 1e-3, 40.0]).view(1, 6, 1, 1)
    x = (
        torch.randn(3, 6, 9, 8) * torch.tensor([1.0, 1e-2, 10.0, 1.0, 1e-4, 1.0]).view(1, 6, 1, 1) + offsets
    ).contiguous(memory_format=torch.channels_last)
    for groups in (1, 2, 3, 6):
        _, statistics = _core.group_norm(groups, 1e-5, x, None, None)
        grouped = x.double().reshape(3, groups, -1)
        mean, var = grouped.mean(-1), grouped.var(-1, correction=0)
        assert ((statistics[..., 0] - mean).abs() <= 1e-6 * var.sqrt()).all()
        torch.testing.assert_close(statistics[..., 1], var, rtol=2e-6, atol=0)


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.parametrize("needed", [n for n in itertools.product((False, True), repeat=3) if any(n)], ids=str)
def test_gradients_that_are_asked_for(needed: tuple[bool, ...]) -> None:
    x, grad = image((3, 12, 6, 5), torch.float32), image((3, 12, 6, 5), torch.float32)
    tensors = (x, *vectors(12, torch.float32))
    want = truth(4, grad, *tensors)[1:]
    leaves = [t.detach().requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]
    F.group_norm(leaves[0], 4, *leaves[1:]).backward(grad)
    for leaf, asked, b in zip(leaves, needed, want, strict=True):
        assert (leaf.grad is not None) is asked
        if asked:
            assert_close(leaf.grad, b)


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.parametrize(("weight", "bias"), [(True, False), (False, True), (False, False)])
def test_without_parameters(weight: bool, bias: bool, tier: str) -> None:
    x, grad = image((3, 12, 6, 5), torch.float32), image((3, 12, 6, 5), torch.float32)
    w, b = vectors(12, torch.float32)
    tensors = (x, w if weight else None, b if bias else None)
    got = step(lambda x, w, b: F.group_norm(x, 4, w, b), grad, *tensors)
    for a, c in zip(got, truth(4, grad, *tensors), strict=True):
        assert_close(a, c)


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.parametrize("needed", [(True, False), (False, True), (True, True), (False, False)], ids=str)
def test_the_weight_of_an_instance_norm_may_change_before_the_backward(needed: tuple[bool, bool]) -> None:
    """As with torch's, which repeats it for every image."""
    x, grad = image((3, 12, 6, 5), torch.float32), image((3, 12, 6, 5), torch.float32)
    tensors = [
        t.detach().requires_grad_(n)
        for t, n in zip((x, *vectors(12, torch.float32)), (*needed, True), strict=True)
    ]
    wanted, results = [t for t in tensors if t.requires_grad], []
    for change in (0, 1):
        output = F.instance_norm(tensors[0], None, None, *tensors[1:])
        with torch.no_grad():
            tensors[1].add_(change)
        results.append(torch.autograd.grad(output, wanted, grad))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.usefixtures("kernels_only")
@pytest.mark.parametrize("size", [(3, 5, 6, 7), (2, 32, 3, 5, 4)], ids=str)
def test_instance_norm(size: tuple[int, ...], tier: str) -> None:
    x, grad = image(size, torch.float32), image(size, torch.float32)
    parameters = vectors(size[1], torch.float32)
    got = step(lambda x, w, b: F.instance_norm(x, None, None, w, b, eps=1e-5), grad, x, *parameters)
    wide = [t.double().contiguous() for t in (x, *parameters)]
    want = step(lambda x, w, b: T.instance_norm(x, None, None, w, b), grad.double().contiguous(), *wide)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)
    assert got[0].stride() == x.stride()


# Few large images, whose rows threads share; many images; more of them than blocks.
@pytest.mark.parametrize(
    "size", [(2, 64, 96, 96), (1, 24, 211, 203), (40, 64, 14, 14), (133, 30, 9, 9)], ids=str
)
def test_bits_do_not_depend_on_threads(size: tuple[int, ...]) -> None:
    x, grad = image(size, torch.float32), image(size, torch.float32)
    parameters = vectors(size[1], torch.float32)
    made = same_on_any_threads(lambda: step(lambda x, w, b: F.group_norm(x, 2, w, b), grad, x, *parameters))
    for a, b in zip(made, truth(2, grad, x, *parameters), strict=True):
        assert_close(a, b, 1024)


def test_values_that_are_not_finite(tier: str) -> None:
    """They spoil the group of their image, and nothing else."""
    for value in (float("nan"), float("inf"), -float("inf")):
        x = image((2, 12, 6, 5), torch.float32)
        clean = F.group_norm(x, 4)
        x[1, 4, 2, 2] = value
        y = F.group_norm(x, 4)
        spoiled = torch.zeros_like(y, dtype=torch.bool)
        spoiled[1, 3:6] = True
        assert torch.isnan(y[spoiled]).all() and torch.equal(y[~spoiled], clean[~spoiled])
    zeros = torch.zeros(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    assert torch.equal(
        F.group_norm(zeros, 2, None, torch.arange(4.0)), T.group_norm(zeros, 2, None, torch.arange(4.0))
    )


@pytest.mark.parametrize("dtype", DISTANCES, ids=str)
def test_an_infinite_gradient_makes_gradients_infinite_as_torchs(dtype: torch.dtype, tier: str) -> None:
    """Whatever sign the rounding of the mean has, and also if there is none, as in float64."""
    for seed in range(6):
        torch.manual_seed(seed)
        x, parameters = image((2, 12, 6, 5), dtype), vectors(12, dtype)
        grad = torch.ones_like(x)
        grad[1, 4, 2, 2] = float("inf")
        _, of_x, of_weight, of_bias = step(lambda x, w, b: F.group_norm(x, 4, w, b), grad, x, *parameters)
        assert of_weight[4].isinf() and of_bias[4] == float("inf"), seed
        others = torch.arange(12) != 4
        assert of_weight[others].isfinite().all() and of_bias[others].isfinite().all()
        spoiled = torch.zeros_like(of_x, dtype=torch.bool)
        spoiled[1, 3:6] = True
        assert torch.equal(~of_x.isfinite(), spoiled) and of_x.isinf().any(), seed


def test_a_variance_that_overflows_is_infinite(tier: str) -> None:
    """In float64; the output is the bias, as of torch's for contiguous tensors."""
    x, parameters = image((2, 12, 6, 5), torch.float64), vectors(12, torch.float64)
    x[1, 4, 2, 2] = 1e160
    y = F.group_norm(x, 4, *parameters)
    assert torch.allclose(y, T.group_norm(x.contiguous(), 4, *parameters), 1e-9, 1e-9)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    """Dense channels_last by the kernel; everything else by torch, counted, with its bits and strides."""
    x = LAYOUTS[layout](torch.randn(4, 6, 5, 4))
    parameters = vectors(6, torch.float32)
    opswap.reset_stats()
    y = F.group_norm(x, 3, *parameters)
    counts = opswap.stats()
    if layout == "channels_last":
        assert counts["kernel"] == {"group_norm": 1} and not counts["reference"]
        assert_close(y, truth(3, torch.ones_like(x), x, *parameters)[0])
        return
    want = T.group_norm(x, 3, *parameters)
    assert not counts["kernel"] and counts["reference"] == {"group_norm": 1}
    assert torch.equal(y, want) and y.stride() == want.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_in_any_layout(layout: str) -> None:
    x = image((4, 6, 5, 4), torch.float32)
    parameters, grad = vectors(6, torch.float32), LAYOUTS[layout](torch.randn(4, 6, 5, 4))
    got = step(lambda x, w, b: F.group_norm(x, 3, w, b), grad, x, *parameters)
    for a, b in zip(got, truth(3, grad, x, *parameters), strict=True):
        assert_close(a, b)
    (summed,) = torch.autograd.grad(F.group_norm(x.requires_grad_(), 3).sum(), x)
    assert summed.abs().max() < 1e-4


LEFT: dict[str, Callable[[], tuple[Tensor, Tensor | None, Tensor | None]]] = {
    "contiguous": lambda: (torch.randn(2, 6, 4, 5), *vectors(6, torch.float32)),
    "3-D": lambda: (torch.randn(2, 6, 4), *vectors(6, torch.float32)),
    "2-D": lambda: (torch.randn(2, 6), None, None),
    "one position": lambda: (image((2, 6, 1, 1), torch.float32), None, None),
    "no image": lambda: (image((0, 6, 3, 2), torch.float32), None, None),
    "one channel of a wider tensor": lambda: (image((2, 9, 4, 5), torch.float32)[:, 2:8], None, None),
    "meta": lambda: (torch.empty(2, 6, 4, 5, device="meta"), None, None),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name: str) -> None:
    x, w, b = LEFT[name]()
    opswap.reset_stats()
    got, want = F.group_norm(x, 3, w, b, 1e-3), T.group_norm(x, 3, w, b, 1e-3)
    counts = opswap.stats()
    assert not counts["kernel"] and counts["reference"] == {"group_norm": 1}
    assert got.shape == want.shape and got.stride() == want.stride()
    assert x.is_meta or torch.equal(got, want)


def test_running_statistics_are_left_to_torch() -> None:
    x, parameters = image((3, 4, 5, 6), torch.float32), vectors(4, torch.float32)
    for use_input_stats in (True, False):
        results = []
        for function in (F.instance_norm, T.instance_norm):
            running = [torch.linspace(0.5, 2, 4), torch.linspace(1, 3, 4)]
            results.append([function(x, *running, *parameters, use_input_stats, 0.3), *running])
        assert all(map(torch.equal, *results))
    assert not instance_norm_fits(x, torch.zeros(4), torch.ones(4)) and instance_norm_fits(x)
    assert not instance_norm_fits(x, use_input_stats=False)


BAD: dict[str, tuple[object, ...]] = {
    "groups do not divide": (5,),
    "negative groups": (-2,),
    "no groups": (0,),
    "groups of float": (3.0,),
    "groups of bool": (True,),
    "short weight": (3, torch.ones(4)),
    "weight of two dimensions": (3, torch.ones(2, 3)),
    "weight is no tensor": (3, [1.0] * 6),
    "mixed dtypes": (3, torch.ones(6, dtype=torch.float64)),
    "parameters of two dtypes": (3, torch.ones(6), torch.ones(6, dtype=torch.float64)),
    "eps is no number": (3, None, None, "small"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_raise_torchs_errors(name: str) -> None:
    x = image((2, 6, 4, 5), torch.float32)
    assert_same_error(lambda: F.group_norm(x, *BAD[name]), lambda: T.group_norm(x, *BAD[name]))


def test_bad_inputs_raise_torchs_errors() -> None:
    for function, stock, x in (
        (F.group_norm, T.group_norm, torch.ones(6)),
        (F.group_norm, T.group_norm, image((1, 6, 1, 1), torch.float32)),
        (F.group_norm, T.group_norm, image((2, 6, 2, 2), torch.float32).long()),
        (F.instance_norm, T.instance_norm, image((2, 6, 1, 1), torch.float32)),
    ):
        arguments = (6,) if function is F.group_norm else ()
        assert_same_error(partial(function, x, *arguments), partial(stock, x, *arguments), 0)


def test_the_extension_checks_what_it_gets() -> None:
    x = image((2, 6, 4, 5), torch.float32)
    y, statistics = _core.group_norm(3, 1e-5, x, None, None)
    assert statistics.shape == (2, 3, 2) and statistics.dtype is torch.float64
    backward = (3, 1e-5, (True, True, True), y, x)
    assert _core.group_norm(3, 1e-5, x.contiguous(), None, None) is NotImplemented
    assert (
        _core.group_norm_backward(*backward[:3], y.contiguous(), x, statistics, None, None) is NotImplemented
    )
    for call in (
        lambda: _core.group_norm(4, 1e-5, x, None, None),
        lambda: _core.group_norm(0, 1e-5, x, None, None),
        lambda: _core.group_norm(3, 1e-5, x[:0], None, None),
        lambda: _core.group_norm(3, 1e-5, x, torch.ones(5), None),
        lambda: _core.group_norm(3, 1e-5, x[:, :, 0, 0], torch.ones(5), None),
        lambda: _core.group_norm_backward(*backward, statistics[:1], None, None),
        lambda: _core.group_norm_backward(*backward, statistics.float(), None, None),
        lambda: _core.group_norm_backward(*backward, statistics.transpose(0, 2), None, None),
        lambda: _core.group_norm_backward(*backward[:3], y[:1], x, statistics, None, None),
        lambda: _core.group_norm_backward(*backward[:3], y.double(), x, statistics, None, None),
    ):
        with pytest.raises(RuntimeError):
            call()
    for call in (
        lambda: _core.group_norm(3.5, 1e-5, x, None, None),
        lambda: _core.group_norm(3, "small", x, None, None),
        lambda: _core.group_norm(3, 1e-5, None, None, None),
        lambda: _core.group_norm(3, 1e-5, x, None),
        lambda: _core.group_norm_backward(3, 1e-5, [True, True, True], y, x, statistics, None, None),
    ):
        with pytest.raises(TypeError):
            call()
    assert (
        _core.group_norm_backward(3, 1e-5, (False, False, False), y, x, statistics, None, None) == (None,) * 3
    )


def test_inputs_stay_as_they_are() -> None:
    x, grad = image((3, 12, 6, 5), torch.float32), image((3, 12, 6, 5), torch.float32)
    tensors = (x, *vectors(12, torch.float32), grad)
    kept = [t.clone() for t in tensors]
    step(lambda x, w, b: F.group_norm(x, 4, w, b), grad, *tensors[:3])
    assert all(map(torch.equal, tensors, kept))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    x, parameters = image((3, 12, 6, 5), dtype), vectors(12, torch.float32)
    want = F.group_norm(x, 4, *parameters)
    with torch.autocast("cpu", torch.bfloat16):
        got, theirs = F.group_norm(x, 4, *parameters), T.group_norm(x, 4, *parameters)
    assert got.dtype is theirs.dtype is dtype and torch.equal(got, want)


def test_what_fits() -> None:
    x = image((2, 6, 4, 5), torch.float32)
    assert group_norm_fits(x, 3) and group_norm_fits(x.to_sparse(), 3) is False
    assert not group_norm_fits(x, 3, eps=0.0) and not group_norm_fits(x, 3, eps=1)
    assert group_norm_fits(x.bfloat16().contiguous(memory_format=torch.channels_last), 3, torch.ones(6))
    assert not group_norm_fits(x, 3, torch.ones(6).bfloat16()) and not group_norm_fits(None, 3)
