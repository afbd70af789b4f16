# SPDX-License-Identifier: MIT
"""Losses of padded batches: values and gradients are those of the batch without its padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from opswap.shapes import losses

N, BOXES, CLASSES = 5, 7, 4
REDUCTIONS = ("none", "mean", "sum")
JUNK = (0.0, float("nan"), float("inf"), -1e30)


def boxes(*size: int, dtype: torch.dtype) -> Tensor:
    corner, side = torch.rand(*size, 2, dtype=dtype) * 8, torch.rand(*size, 2, dtype=dtype) * 4 + 0.5
    return torch.cat([corner, corner + side], -1)


def focal_reference(x: Tensor, t: Tensor, reduction: str, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    p = torch.where(t == 1, torch.sigmoid(x), 1 - torch.sigmoid(x))
    factor = torch.where(t == 1, alpha, 1 - alpha) if alpha >= 0 else torch.ones_like(x)
    loss = -factor * (1 - p) ** gamma * p.log()
    return {"none": loss, "mean": loss.mean(), "sum": loss.sum()}[reduction]


def giou_reference(a: Tensor, b: Tensor, reduction: str) -> Tensor:
    """Box by box, in plain numbers."""
    rows = []
    for p, q in zip(a, b, strict=True):
        cross = (torch.minimum(p[2], q[2]) - torch.maximum(p[0], q[0])).clamp(min=0) * (
            torch.minimum(p[3], q[3]) - torch.maximum(p[1], q[1])
        ).clamp(min=0)
        union = (p[2] - p[0]) * (p[3] - p[1]) + (q[2] - q[0]) * (q[3] - q[1]) - cross
        hull = (torch.maximum(p[2], q[2]) - torch.minimum(p[0], q[0])) * (
            torch.maximum(p[3], q[3]) - torch.minimum(p[1], q[1])
        )
        rows.append(1 - cross / union + (hull - union) / hull)
    loss = torch.stack(rows) if rows else a.sum(-1)
    return {"none": loss, "mean": loss.mean(), "sum": loss.sum()}[reduction]


WEIGHT = torch.rand(CLASSES) + 0.5
# For each loss: how inputs and targets are made, ours, and the loss of a flat batch without padding.
CASES: dict[str, tuple[Callable, Callable, Callable, Callable]] = {
    "l1": (
        lambda d: torch.randn(N, BOXES, 4, dtype=d),
        lambda d: torch.randn(N, BOXES, 4, dtype=d),
        losses.l1,
        lambda x, t, r: F.l1_loss(x, t, reduction=r),
    ),
    "mse": (
        lambda d: torch.randn(N, BOXES, 4, dtype=d),
        lambda d: torch.randn(N, BOXES, 4, dtype=d),
        losses.mse,
        lambda x, t, r: F.mse_loss(x, t, reduction=r),
    ),
    "smooth_l1": (
        lambda d: torch.randn(N, BOXES, 4, dtype=d),
        lambda d: torch.randn(N, BOXES, 4, dtype=d),
        lambda *a, **k: losses.smooth_l1(*a, beta=0.3, **k),
        lambda x, t, r: F.smooth_l1_loss(x, t, beta=0.3, reduction=r),
    ),
    "bce_with_logits": (
        lambda d: torch.randn(N, BOXES, CLASSES, dtype=d),
        lambda d: torch.rand(N, BOXES, CLASSES, dtype=d),
        lambda *a, **k: losses.bce_with_logits(*a, pos_weight=WEIGHT.to(a[0].dtype), **k),
        lambda x, t, r: F.binary_cross_entropy_with_logits(x, t, pos_weight=WEIGHT.to(x.dtype), reduction=r),
    ),
    "bce_with_logits, weighted": (
        lambda d: torch.randn(N, BOXES, CLASSES, dtype=d),
        lambda d: torch.rand(N, BOXES, CLASSES, dtype=d),
        lambda *a, **k: losses.bce_with_logits(*a, weight=WEIGHT.to(a[0].dtype), **k),
        lambda x, t, r: F.binary_cross_entropy_with_logits(x, t, WEIGHT.to(x.dtype), reduction=r),
    ),
    "focal": (
        lambda d: torch.randn(N, BOXES, CLASSES, dtype=d),
        lambda d: (torch.rand(N, BOXES, CLASSES) < 0.3).to(d),
        losses.focal,
        focal_reference,
    ),
    "focal without alpha": (
        lambda d: torch.randn(N, BOXES, CLASSES, dtype=d),
        lambda d: (torch.rand(N, BOXES, CLASSES) < 0.3).to(d),
        lambda *a, **k: losses.focal(*a, alpha=-1, gamma=1.5, **k),
        lambda x, t, r: focal_reference(x, t, r, -1, 1.5),
    ),
    "giou": (
        lambda d: boxes(N, BOXES, dtype=d),
        lambda d: boxes(N, BOXES, dtype=d),
        losses.giou,
        giou_reference,
    ),
    "cross_entropy": (
        lambda d: torch.randn(N * BOXES, CLASSES, dtype=d),
        lambda d: torch.randint(CLASSES, (N * BOXES,)),
        losses.cross_entropy,
        lambda x, t, r: F.cross_entropy(x, t, reduction=r),
    ),
    "cross_entropy, weighted": (
        lambda d: torch.randn(N * BOXES, CLASSES, dtype=d),
        lambda d: torch.randint(CLASSES, (N * BOXES,)),
        lambda *a, **k: losses.cross_entropy(*a, weight=WEIGHT.to(a[0].dtype), ignore_index=2, **k),
        lambda x, t, r: F.cross_entropy(x, t, weight=WEIGHT.to(x.dtype), ignore_index=2, reduction=r),
    ),
    "cross_entropy, smoothed": (
        lambda d: torch.randn(N * BOXES, CLASSES, dtype=d),
        lambda d: torch.randint(CLASSES, (N * BOXES,)),
        lambda *a, **k: losses.cross_entropy(*a, weight=WEIGHT.to(a[0].dtype), label_smoothing=0.1, **k),
        lambda x, t, r: F.cross_entropy(x, t, weight=WEIGHT.to(x.dtype), label_smoothing=0.1, reduction=r),
    ),
    "cross_entropy of probabilities": (
        lambda d: torch.randn(N * BOXES, CLASSES, dtype=d),
        lambda d: torch.rand(N * BOXES, CLASSES, dtype=d).softmax(1),
        lambda *a, **k: losses.cross_entropy(*a, weight=WEIGHT.to(a[0].dtype), **k),
        lambda x, t, r: F.cross_entropy(x, t, weight=WEIGHT.to(x.dtype), reduction=r),
    ),
}


def masks(flat: bool) -> dict[str, Tensor]:
    lengths = torch.tensor([3, 0, 7, 1, 5])
    ragged = torch.arange(BOXES) < lengths[:, None]
    found = {"ragged": ragged, "all": torch.ones_like(ragged), "random": torch.rand(N, BOXES) < 0.5}
    return {k: v.flatten() if flat else v for k, v in found.items()}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_unpadded_batch(name: str, reduction: str, junk: float) -> None:
    make_input, make_target, ours, unpadded = CASES[name]
    x, t = make_input(torch.float64), make_target(torch.float64)
    for valid in masks(flat=x.dim() == 2).values():
        dirty = x.masked_fill(~valid[..., None], junk).requires_grad_()
        filled = t.masked_fill(
            ~(valid[..., None] if t.dim() == x.dim() else valid), 3 if t.dtype == torch.int64 else junk
        )
        clean = x.clone().requires_grad_()
        got, want = (
            ours(dirty, filled, valid, reduction=reduction),
            unpadded(clean[valid], t[valid], reduction),
        )
        if reduction == "none":
            assert not got[~valid].any()
            got = got[valid]
        torch.testing.assert_close(got, want, rtol=1e-6 if name == "giou" else 1e-12, atol=1e-7)
        cotangent = torch.rand_like(want)
        (a,), (b,) = torch.autograd.grad(got, dirty, cotangent), torch.autograd.grad(want, clean, cotangent)
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
        assert not a[~valid].any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_all_padding_is_zero(name: str, reduction: str) -> None:
    make_input, make_target, ours, _ = CASES[name]
    x, t = make_input(torch.float32), make_target(torch.float32)
    valid = torch.zeros(x.shape[:-1], dtype=torch.bool)
    x = x.fill_(float("nan")).requires_grad_()
    loss = ours(x, t, valid, reduction=reduction)
    assert not loss.any()
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    assert not gradient.any() and gradient.shape == x.shape


def test_all_classes_ignored_is_zero() -> None:
    x = torch.randn(4, CLASSES, requires_grad=True)
    loss = losses.cross_entropy(x, torch.full((4,), -100), torch.ones(4, dtype=torch.bool))
    assert loss == 0 and not torch.autograd.grad(loss, x)[0].any()


def test_cross_entropy_of_images() -> None:
    """(N, C, H, W) with a class per pixel, and `valid` per pixel or per image."""
    x, t = torch.randn(3, CLASSES, 5, 6, dtype=torch.float64), torch.randint(CLASSES, (3, 5, 6))
    pixels = torch.rand(3, 5, 6) < 0.6
    want = F.cross_entropy(x.movedim(1, -1)[pixels], t[pixels])
    torch.testing.assert_close(losses.cross_entropy(x, t, pixels), want)
    images = torch.tensor([True, False, True])
    torch.testing.assert_close(losses.cross_entropy(x, t, images), F.cross_entropy(x[images], t[images]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mean_of_half_does_not_overflow(dtype: torch.dtype) -> None:
    x, t = torch.full((4096, 4), 100.0, dtype=dtype), torch.zeros(4096, 4, dtype=dtype)
    valid = torch.arange(4096) < 4000
    got = losses.l1(x, t, valid)
    assert got.dtype == dtype and got == 100


@pytest.mark.parametrize("name", CASES)
def test_compiles_to_one_graph(name: str) -> None:
    make_input, make_target, ours, _ = CASES[name]
    x, t = make_input(torch.float32), make_target(torch.float32)
    valid = torch.rand(x.shape[:-1]) < 0.5
    explanation = torch.compile(ours, fullgraph=True, backend="eager")
    torch.testing.assert_close(explanation(x, t, valid), ours(x, t, valid))


X = torch.randn(3, 4)
VALID = torch.ones(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: losses.l1(X, X[:2], VALID), ValueError, r"l1: .* \(3, 4\) and \(2, 4\)"),
        (lambda: losses.mse(X, X, VALID.float()), TypeError, "mse: valid .* torch.float32"),
        (lambda: losses.mse(X, X, [True]), TypeError, "mse: valid .* list"),
        (lambda: losses.l1(X, X, VALID[:2]), ValueError, r"l1: valid \(2,\) is not how \(3, 4\) begins"),
        (lambda: losses.l1(X, X, VALID, reduction="avg"), ValueError, "l1: reduction .* 'avg'"),
        (lambda: losses.giou(X[:, :3], X[:, :3], VALID), ValueError, r"giou: .* \(3, 3\)"),
        (lambda: losses.giou(X, X, torch.ones_like(X).bool()), ValueError, "giou: valid"),
        (lambda: losses.cross_entropy(X[0], X[0], VALID), ValueError, r"cross_entropy: input .* \(4,\)"),
        (lambda: losses.cross_entropy(X, torch.ones(2).long(), VALID), ValueError, r"target \(2,\)"),
        (lambda: losses.cross_entropy(X, torch.ones(3).long(), VALID[:1]), ValueError, r"valid \(1,\)"),
    ],
)
def test_errors(call: Callable[[], Tensor], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_cross_entropy_of_bytes_with_weights() -> None:
    """Bytes are classes here, not a mask."""
    x, weight, valid = torch.randn(5, 5), torch.rand(5) + 0.1, torch.ones(5, dtype=torch.bool)
    target = torch.tensor([1, 2, 1, 3, 1], dtype=torch.uint8)
    for n in (5, 4):
        want = F.cross_entropy(x[:n], target[:n], weight=weight)
        torch.testing.assert_close(losses.cross_entropy(x[:n], target[:n], valid[:n], weight=weight), want)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_of_bytes_counts_class_156(reduction: str) -> None:
    """-100 in a byte."""
    x, valid = torch.randn(4, 200), torch.ones(4, dtype=torch.bool)
    target = torch.tensor([156, 3, 156, 4], dtype=torch.uint8)
    want = F.cross_entropy(x, target.long(), reduction=reduction)
    torch.testing.assert_close(losses.cross_entropy(x, target, valid, reduction=reduction), want)
    want = F.cross_entropy(x, target.long(), ignore_index=156, reduction=reduction)
    found = losses.cross_entropy(x, target, valid, ignore_index=156, reduction=reduction)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_giou_of_whole_numbers(dtype: torch.dtype) -> None:
    """Their areas exceed a byte."""
    a, b = torch.tensor([[0, 0, 100, 90], [3, 3, 60, 120]]), torch.tensor([[5, 4, 90, 100], [0, 0, 30, 30]])
    valid = torch.tensor([True, True])
    want = losses.giou(a.float(), b.float(), valid, reduction="none")
    found = losses.giou(a.to(dtype), b.to(dtype), valid, reduction="none")
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_giou_of_large_boxes_in_16_bits(dtype: torch.dtype, reduction: str) -> None:
    """Areas of 300 x 300 pixels exceed float16."""
    a = torch.tensor([[0.0, 0, 300, 300], [0, 0, 10, 10], [5, 5, 400, 300]]).to(dtype).requires_grad_()
    b, valid = a.detach() + 4, torch.tensor([True, True, False])
    found = losses.giou(a, b, valid, reduction=reduction)
    assert found.dtype is dtype
    wide = a.detach().float().requires_grad_()
    want = losses.giou(wide, b.float(), valid, reduction=reduction)
    torch.testing.assert_close(found.float(), want, rtol=0.01, atol=0)
    found.sum().backward()
    want.sum().backward()
    assert a.grad is not None and wide.grad is not None
    torch.testing.assert_close(a.grad.float(), wide.grad, rtol=0.02, atol=1e-5)
