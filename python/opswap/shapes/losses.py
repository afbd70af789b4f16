# SPDX-License-Identifier: MIT
"""Losses of padded batches: `valid` marks the elements that count, and the result is that of the unpadded batch.

A padded batch has one size for every step, so a compiler builds one graph, and `input[valid]`, whose size depends on
data, is not needed. What lies at the padded places is never used, not even a NaN: it changes neither the value nor
a gradient. A batch that is all padding has the loss 0 and gradients of 0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["bce_with_logits", "cross_entropy", "focal", "giou", "l1", "mse", "smooth_l1"]

_REDUCTIONS = ("none", "mean", "sum")


def l1(input: Tensor, target: Tensor, valid: Tensor, *, reduction: str = "mean") -> Tensor:
    """Absolute differences of the valid elements, as torch.nn.functional.l1_loss of `input[valid]`.

    Args: input, target: (*, D...) of one shape. valid: bool, the first dimensions of that shape.
        reduction: "mean" over valid elements, "sum", or "none": the shape of input, 0 for elements that are not valid.
    Raises: TypeError, ValueError for a `valid` that does not fit; errors of torch's function for the rest.
    """
    input, target, mask = _masked("l1", input, target, valid)
    return _reduced("l1", F.l1_loss(input, target, reduction="none"), mask, reduction)


def mse(input: Tensor, target: Tensor, valid: Tensor, *, reduction: str = "mean") -> Tensor:
    """Squared differences of the valid elements, as torch.nn.functional.mse_loss of `input[valid]`; see `l1`."""
    input, target, mask = _masked("mse", input, target, valid)
    return _reduced("mse", F.mse_loss(input, target, reduction="none"), mask, reduction)


def smooth_l1(
    input: Tensor, target: Tensor, valid: Tensor, *, beta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Huber's loss divided by beta, as torch.nn.functional.smooth_l1_loss of `input[valid]`; see `l1`.

    Args: beta: differences below it are squared; 0 is `l1`.
    Source: Girshick 2015, Fast R-CNN, equation 3.
    """
    input, target, mask = _masked("smooth_l1", input, target, valid)
    loss = F.smooth_l1_loss(input, target, reduction="none", beta=beta)
    return _reduced("smooth_l1", loss, mask, reduction)


def bce_with_logits(
    input: Tensor,
    target: Tensor,
    valid: Tensor,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Binary cross entropy of logits, as torch.nn.functional.binary_cross_entropy_with_logits; see `l1`.

    Args: weight, pos_weight: broadcast against input, as there.
    """
    input, target, mask = _masked("bce_with_logits", input, target, valid)
    loss = F.binary_cross_entropy_with_logits(input, target, weight, reduction="none", pos_weight=pos_weight)
    return _reduced("bce_with_logits", loss, mask, reduction)


def focal(
    input: Tensor,
    target: Tensor,
    valid: Tensor,
    *,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss of logits: -alpha_t (1 - p_t)^gamma log(p_t); arguments as of `bce_with_logits`.

    Args: target: 0 or 1, in input's dtype. alpha: weight of target 1, and 1 - alpha of 0; negative: no weights.
        gamma: exponent that plays easy examples down; 0 is weighted cross entropy.
    Source: Lin et al. 2017, Focal Loss for Dense Object Detection, equation 5.
    """
    input, target, mask = _masked("focal", input, target, valid)
    p = torch.sigmoid(input)
    entropy = F.binary_cross_entropy_with_logits(input, target, reduction="none")
    missed = p * (1 - target) + (1 - p) * target  # 1 - p_t
    loss = entropy * missed**gamma
    if alpha >= 0:
        loss = loss * (alpha * target + (1 - alpha) * (1 - target))
    return _reduced("focal", loss, mask, reduction)


def giou(
    input: Tensor, target: Tensor, valid: Tensor, *, eps: float = 1e-7, reduction: str = "mean"
) -> Tensor:
    """One minus the generalised intersection over union of box pairs.

    Args: input, target: (*, 4), boxes (x1, y1, x2, y2) with x1 <= x2 and y1 <= y2. valid: (*) bool, one per box.
        reduction: "mean" over valid boxes, "sum", or "none": (*), 0 for boxes that are not valid.
    Source: Rezatofighi et al. 2019, Generalized Intersection over Union, algorithm 1.
    """
    if input.shape != target.shape or input.shape[-1:] != (4,):
        raise ValueError(f"giou: boxes must be of one shape (*, 4), got {_size(input)} and {_size(target)}")
    _check("giou", valid, input.shape[:-1])
    if valid.dim() != input.dim() - 1:
        raise ValueError(
            f"giou: valid must have one entry per box, {_size(input[..., 0])}, got {_size(valid)}"
        )
    unit = input.new_tensor([0, 0, 1, 1])
    dtype = torch.promote_types(input.dtype, target.dtype)
    wide = dtype  # for areas, which may exceed it
    if dtype not in (torch.float32, torch.float64):
        wide = torch.float32 if dtype.is_floating_point else torch.int64
    a, b = (torch.where(valid[..., None], t, unit.to(t.dtype)).to(wide) for t in (input, target))
    (left, top, right, bottom), (left_b, top_b, right_b, bottom_b) = a.unbind(-1), b.unbind(-1)
    width = torch.minimum(right, right_b) - torch.maximum(left, left_b)
    height = torch.minimum(bottom, bottom_b) - torch.maximum(top, top_b)
    shared = width.clamp(min=0) * height.clamp(min=0)
    around_width = torch.maximum(right, right_b) - torch.minimum(left, left_b)
    around = around_width * (torch.maximum(bottom, bottom_b) - torch.minimum(top, top_b))
    union = (right - left) * (bottom - top) + (right_b - left_b) * (bottom_b - top_b) - shared
    loss = 1 - shared / (union + eps) + (around - union) / (around + eps)
    found = _reduced("giou", loss, valid, reduction)
    return found.to(dtype) if dtype.is_floating_point else found


def cross_entropy(
    input: Tensor,
    target: Tensor,
    valid: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy of logits, as torch.nn.functional.cross_entropy of the valid elements.

    Args:
        input: (N, C, d...) logits. target: (N, d...) class indices, or (N, C, d...) probabilities.
        valid: (N, d...) bool, or its first dimensions. weight: (C,), weight of each class.
        ignore_index: class that does not count either. label_smoothing: share given to all classes.
        reduction: "mean" (over the weights of what counts, as in torch), "sum", or "none": (N, d...).
    """
    if input.dim() < 2:
        raise ValueError(f"cross_entropy: input must be (N, C, d...), got {_size(input)}")
    places = (input.shape[0], *input.shape[2:])
    indices = not target.is_floating_point()
    if tuple(target.shape) != (places if indices else tuple(input.shape)):
        raise ValueError(
            f"cross_entropy: target {_size(target)} is neither one class per element, {places}, "
            f"nor one probability per logit, {tuple(input.shape)}"
        )
    _check("cross_entropy", valid, places)
    mask = _trailing(valid, len(places)).expand(places)
    options: dict[str, Any] = {"weight": weight, "label_smoothing": label_smoothing, "reduction": "none"}
    input = torch.where(mask.unsqueeze(1), input, input.new_zeros(()))
    if not indices:
        target = torch.where(mask.unsqueeze(1), target, target.new_zeros(()))
        return _reduced("cross_entropy", F.cross_entropy(input, target, **options), mask, reduction)
    counted = mask & (target.long() != ignore_index)  # of bytes, -100 would be class 156
    target = torch.where(counted, target, target.new_zeros(()))
    loss = F.cross_entropy(input, target, **options)
    weights = None if weight is None else weight[target.long()]  # bytes would be a mask
    return _reduced("cross_entropy", loss, counted, reduction, weights)


def _masked(name: str, input: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Input and target with zeros where not valid, and valid in input's shape."""
    if input.shape != target.shape:
        raise ValueError(
            f"{name}: input and target must be of one shape, got {_size(input)} and {_size(target)}"
        )
    _check(name, valid, input.shape)
    mask = _trailing(valid, input.dim()).expand(input.shape)
    input, target = (torch.where(mask, t, t.new_zeros(())) for t in (input, target))
    return input, target, mask


def _check(name: str, valid: Tensor, shape: tuple[int, ...]) -> None:
    if not isinstance(valid, Tensor) or valid.dtype is not torch.bool:
        kind = valid.dtype if isinstance(valid, Tensor) else type(valid).__name__
        raise TypeError(f"{name}: valid must be a tensor of torch.bool, got {kind}")
    if valid.shape != tuple(shape)[: valid.dim()]:
        raise ValueError(f"{name}: valid {_size(valid)} is not how {tuple(shape)} begins")


def _trailing(valid: Tensor, ndim: int) -> Tensor:
    return valid.reshape(valid.shape + (1,) * (ndim - valid.dim()))


def _reduced(name: str, loss: Tensor, mask: Tensor, reduction: str, weights: Tensor | None = None) -> Tensor:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{name}: reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
    loss = torch.where(mask, loss, loss.new_zeros(()))
    if reduction == "none":
        return loss
    # A sum of many 16-bit losses may exceed the largest number that their mean is far below.
    wide = torch.float64 if loss.dtype is torch.float64 else torch.float32
    total = loss.sum(dtype=wide)
    if reduction == "mean":
        counts = mask if weights is None else torch.where(mask, weights, weights.new_zeros(()))
        count = counts.sum(dtype=wide)
        total = total / torch.where(count == 0, torch.ones_like(count), count)
    return total.to(loss.dtype)


def _size(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
