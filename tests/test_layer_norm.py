# SPDX-License-Identifier: MIT
"""Layer normalisation against float64 and torch: values, gradients, layouts, threads, errors."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as T
from torch import Tensor

import opswap
from inputs import channels_last_of, same_bits
from nearness import assert_as_near
from norm_steps import DISTANCES, assert_close, step, vectors
from opswap import _core
from opswap import functional as F
from opswap.ops.norm import layer_norm2d_fits, layer_norm_fits
from step import assert_same_error
from threads import same_on_any_threads

# Channels around the widths of vectors and beyond, rows from one to many.
SIZES = (
    (1, 2),
    (3, 7),
    (5, 8),
    (9, 15),
    (2, 3, 16),
    (4, 17),
    (7, 31),
    (2, 5, 5, 33),
    (3, 3, 3, 40),
    (6, 96),
    (300, 6),
    (2, 2, 2, 2, 64),
    (13, 255),
    (21, 257),
    (6, 1031),
)
IMAGES = ((2, 6, 4, 5), (1, 40, 7, 3), (3, 32, 2, 3, 4))


def rows(
    size: tuple[int, ...], dtype: torch.dtype, mean: float | Tensor = 1.0, deviation: float | Tensor = 2.0
) -> Tensor:
    return (torch.randn(size) * deviation + mean).to(dtype)


def image(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return rows(size, dtype).contiguous(memory_format=channels_last_of(len(size)))


def ours(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def stock(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    return T.layer_norm(x, (x.shape[-1],), w, b)


def truth(grad: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """In float64 by torch."""
    return step(stock, grad.double(), *[None if t is None else t.double() for t in tensors])


def ran(count: int = 1) -> None:
    """Fail unless the kernels ran so often since the statistics were reset, and nothing else."""
    counts = opswap.stats()
    assert counts["kernel"].get("layer_norm", 0) == count and not counts["reference"]


@pytest.mark.parametrize("dtype", DISTANCES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_float64(size: tuple[int, ...], dtype: torch.dtype, tier: str) -> None:
    for kind in {dtype, torch.float32 if dtype.itemsize == 2 else dtype}:
        x, parameters = rows(size, dtype), vectors(size[-1], kind)
        if size[-1] == 2:  # of two values the gradient is next to nothing, and rounding all of it
            x[..., 0], x[..., 1] = 1, torch.randint(2, 9, size[:-1]).to(dtype)
        grad = torch.randn_like(x)
        opswap.reset_stats()
        got = step(ours, grad, x, *parameters)
        ran()
        for a, b in zip(got, truth(grad, x, *parameters), strict=True):
            assert_close(a, b)
        assert got[0].dtype is got[1].dtype is dtype and got[0].is_contiguous()
        assert got[2].dtype is got[3].dtype is kind


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_as_near_as_torch(dtype: torch.dtype, tier: str) -> None:
    """Rows of 96, of which each has its own mean and deviation, with an outlier here and there."""

    def draw() -> tuple[dict[str, Tensor], ...]:
        x = rows((64, 96), dtype, torch.randn(64, 1) * 3, torch.rand(64, 1) + 0.5)
        x[::7, 3] *= 20
        grad, parameters = torch.randn_like(x), vectors(96, dtype)
        found = (
            truth(grad, x, *parameters),
            step(stock, grad, x, *parameters),
            step(ours, grad, x, *parameters),
        )
        names = ("output", "input", "weight", "bias")
        return tuple(dict(zip(names, tensors, strict=True)) for tensors in found)

    assert_as_near(draw, times=2)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [(50, 96), (3, 768), (40, 7)], ids=str)
def test_far_means(size: tuple[int, ...], seed: int, tier: str) -> None:
    """Where E[x^2] - E[x]^2 has no digit left, and a float cannot hold the mean."""
    torch.manual_seed(seed)
    x = rows(size, torch.float32, 1000.0, 0.01)
    grad, parameters = torch.randn_like(x), vectors(size[-1], torch.float32)
    got = step(ours, grad, x, *parameters)
    for a, b in zip(got, truth(grad, x, *parameters), strict=True):
        assert_close(a, b)


def test_statistics(tier: str) -> None:
    offsets = torch.tensor([0.0, 1000.0, -300.0, 1.0, 1e-3, 40.0]).view(6, 1)
    x = torch.randn(6, 72) * torch.tensor([1.0, 1e-2, 10.0, 1.0, 1e-1, 1.0]).view(6, 1) + offsets
    _, statistics = _core.layer_norm(1e-5, x, None, None)
    mean, var = x.double().mean(-1), x.double().var(-1, correction=0)
    assert ((statistics[:, 0] - mean).abs() <= 1e-6 * var.sqrt()).all()
    torch.testing.assert_close(statistics[:, 1], (var + 1e-5).rsqrt(), rtol=2e-6, atol=0)


def test_bits_of_a_row_are_its_own(tier: str) -> None:
    """Whatever other rows there are, and wherever it lies among them."""
    for channels in (40, 300):
        x, parameters = rows((37, channels), torch.float32), vectors(channels, torch.float32)
        y = ours(x, *parameters)
        for first, last in ((0, 1), (3, 5), (30, 37), (11, 33)):
            assert same_bits(ours(x[first:last].clone(), *parameters), y[first:last])


@pytest.mark.parametrize("needed", [n for n in itertools.product((False, True), repeat=3) if any(n)], ids=str)
def test_gradients_that_are_asked_for(needed: tuple[bool, ...], tier: str) -> None:
    x, grad = rows((30, 12), torch.float32), rows((30, 12), torch.float32)
    tensors = (x, *vectors(12, torch.float32))
    want = truth(grad, *tensors)[1:]
    leaves = [t.detach().requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]
    ours(*leaves).backward(grad)
    for leaf, asked, b in zip(leaves, needed, want, strict=True):
        assert (leaf.grad is not None) is asked
        if asked:
            assert_close(leaf.grad, b)


@pytest.mark.parametrize(("weight", "bias"), [(True, False), (False, True), (False, False)])
def test_without_parameters(weight: bool, bias: bool, tier: str) -> None:
    x, grad = rows((30, 12), torch.float32), rows((30, 12), torch.float32)
    w, b = vectors(12, torch.float32)
    tensors = (x, w if weight else None, b if bias else None)
    opswap.reset_stats()
    got = step(ours, grad, *tensors)
    ran()
    for a, c in zip(got, truth(grad, *tensors), strict=True):
        assert_close(a, c)


# Fewer chunks than threads; many chunks; as many as there may be.
@pytest.mark.parametrize("size", [(500, 96), (3000, 40), (40000, 33)], ids=str)
def test_bits_do_not_depend_on_threads(size: tuple[int, ...]) -> None:
    x, grad = rows(size, torch.float32), rows(size, torch.float32)
    parameters = vectors(size[-1], torch.float32)
    made = same_on_any_threads(lambda: step(ours, grad, x, *parameters))
    for a, b in zip(made, truth(grad, x, *parameters), strict=True):
        assert_close(a, b, 1024)


def test_values_that_are_not_finite(tier: str) -> None:
    """They spoil their row, and nothing else."""
    for value in (float("nan"), float("inf"), -float("inf")):
        x = rows((11, 21), torch.float32)
        clean = F.layer_norm(x, (21,))
        x[4, 17] = value
        y = F.layer_norm(x, (21,))
        assert torch.isnan(y[4]).all()
        others = torch.arange(11) != 4
        assert torch.equal(y[others], clean[others])
    zeros, bias = torch.zeros(5, 20), torch.arange(20.0)
    assert torch.equal(F.layer_norm(zeros, (20,), None, bias), T.layer_norm(zeros, (20,), None, bias))


@pytest.mark.parametrize("size", IMAGES, ids=str)
def test_images(size: tuple[int, ...], tier: str) -> None:
    """In channels_last without a copy; other layouts give the same bits, in channels_last as torch's composition."""
    x, parameters = image(size), vectors(size[1], torch.float32)
    grad = image(size)

    def composed(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return T.layer_norm(x.movedim(1, -1), (x.shape[1],), w, b).movedim(-1, 1)

    opswap.reset_stats()
    got = step(lambda x, w, b: F.layer_norm2d(x, w, b), grad, x, *parameters)
    ran()
    want = step(composed, grad.double(), *[t.double() for t in (x, *parameters)])
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)
    assert got[0].stride() == got[1].stride() == x.stride()
    planes = F.layer_norm2d(x.contiguous(), *parameters)
    assert same_bits(planes, got[0]) and planes.stride() == x.stride()
    assert layer_norm2d_fits(x, *parameters) and not layer_norm2d_fits(x.contiguous(), *parameters)


def test_images_of_other_dimensions_raise() -> None:
    for size in ((2, 3), (2, 3, 4), (2, 3, 4, 5, 6, 7)):
        with pytest.raises(RuntimeError, match="must have 4 or 5 dimensions"):
            F.layer_norm2d(torch.ones(size))
        assert not layer_norm2d_fits(torch.ones(size))
    with pytest.raises(RuntimeError, match="normalized_shape"):
        F.layer_norm2d(image((2, 6, 4, 5)), torch.ones(5))


def test_gradients_in_any_layout() -> None:
    x, parameters = rows((4, 5, 6), torch.float32), vectors(6, torch.float32)
    grads = (
        torch.randn(6, 5, 4).permute(2, 1, 0),
        torch.randn(4, 5, 12)[..., ::2],
        torch.ones(1).expand(4, 5, 6),
    )
    for grad in grads:
        for a, b in zip(step(ours, grad, x, *parameters), truth(grad, x, *parameters), strict=True):
            assert_close(a, b)


LEFT = {
    "transposed": lambda: (torch.randn(5, 4, 6).transpose(0, 1), (6,)),
    "a slice": lambda: (torch.randn(5, 4, 12)[..., :6], (6,)),
    "two dimensions": lambda: (torch.randn(5, 4, 6), (4, 6)),
    "one row": lambda: (torch.randn(6), (6,)),
    "one channel": lambda: (torch.randn(5, 1), (1,)),
    "no row": lambda: (torch.randn(0, 6), (6,)),
    "nine dimensions": lambda: (torch.randn(1, 1, 2, 1, 1, 2, 1, 2, 6), (6,)),
    "meta": lambda: (torch.empty(5, 6, device="meta"), (6,)),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_torch(name: str) -> None:
    x, shape = LEFT[name]()
    opswap.reset_stats()
    got, want = F.layer_norm(x, shape, None, None, 1e-3), T.layer_norm(x, shape, None, None, 1e-3)
    counts = opswap.stats()
    assert not counts["kernel"] and counts["reference"] == {"layer_norm": 1}
    assert got.shape == want.shape and got.stride() == want.stride()
    assert x.is_meta or torch.equal(got, want)


BAD: dict[str, tuple[object, ...]] = {
    "another size": ((5,),),
    "a number": (6,),
    "no shape": (None,),
    "short weight": ((6,), torch.ones(4)),
    "weight of two dimensions": ((6,), torch.ones(2, 3)),
    "weight is no tensor": ((6,), [1.0] * 6),
    "mixed dtypes": ((6,), torch.ones(6, dtype=torch.float64)),
    "parameters of two dtypes": ((6,), torch.ones(6), torch.ones(6, dtype=torch.float64)),
    "eps is no number": ((6,), None, None, "small"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_raise_torchs_errors(name: str) -> None:
    x = rows((4, 6), torch.float32)
    assert_same_error(lambda: F.layer_norm(x, *BAD[name]), lambda: T.layer_norm(x, *BAD[name]))


def test_the_extension_checks_what_it_gets() -> None:
    x = rows((4, 3, 6), torch.float32)
    y, statistics = _core.layer_norm(1e-5, x, None, None)
    assert statistics.shape == (4, 3, 2) and statistics.dtype is torch.float64
    backward = (1e-5, (True, True, True), y, x)
    assert _core.layer_norm(1e-5, x.transpose(0, 1), None, None) is NotImplemented
    aside = torch.randn(3, 4, 6).transpose(0, 1)
    assert _core.layer_norm_backward(*backward[:2], aside, x, statistics, None, None) is NotImplemented
    for call in (
        lambda: _core.layer_norm(1e-5, x[:0], None, None),
        lambda: _core.layer_norm(1e-5, x, torch.ones(5), None),
        lambda: _core.layer_norm(1e-5, x, torch.ones(6, 1), None),
        lambda: _core.layer_norm(1e-5, x, torch.ones(6), torch.ones(6).double()),
        lambda: _core.layer_norm(1e-5, x[0, 0], None, None),
        lambda: _core.layer_norm(1e-5, x.long(), None, None),
        lambda: _core.layer_norm_backward(*backward, statistics[:1], None, None),
        lambda: _core.layer_norm_backward(*backward, statistics.float(), None, None),
        lambda: _core.layer_norm_backward(*backward[:2], y[:1], x, statistics, None, None),
        lambda: _core.layer_norm_backward(*backward[:2], y.double(), x, statistics, None, None),
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            call()
    for call in (
        lambda: _core.layer_norm("small", x, None, None),
        lambda: _core.layer_norm(1e-5, None, None, None),
        lambda: _core.layer_norm(1e-5, x, None),
        lambda: _core.layer_norm_backward(1e-5, [True, True, True], y, x, statistics, None, None),
    ):
        with pytest.raises(TypeError):
            call()
    assert _core.layer_norm_backward(1e-5, (False,) * 3, y, x, statistics, None, None) == (None,) * 3
    assert all(_core.layer_norm_variants()[f"{name}_f32"] for name in ("forward", "backward"))


def test_inputs_stay_as_they_are() -> None:
    tensors = (rows((30, 12), torch.float32), *vectors(12, torch.float32), rows((30, 12), torch.float32))
    kept = [t.clone() for t in tensors]
    step(ours, tensors[3], *tensors[:3])
    assert all(map(torch.equal, tensors, kept))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    x, parameters = rows((30, 12), dtype), vectors(12, torch.float32)
    want = ours(x, *parameters)
    with torch.autocast("cpu", torch.bfloat16):
        got, theirs = ours(x, *parameters), stock(x, *parameters)
    assert got.dtype is theirs.dtype is dtype and torch.equal(got, want)


def test_what_fits() -> None:
    x = rows((4, 6), torch.float32)
    assert layer_norm_fits(x, (6,)) and layer_norm_fits(x, torch.Size([6])) and layer_norm_fits(x, [6])
    assert not layer_norm_fits(x.to_sparse(), (6,)) and not layer_norm_fits(None, (6,))
    assert not layer_norm_fits(x, (6,), eps=0.0) and not layer_norm_fits(x, (6,), eps=1)
    assert layer_norm_fits(x.bfloat16(), (6,), torch.ones(6))
    assert not layer_norm_fits(x, (6,), torch.ones(6).bfloat16())
