# SPDX-License-Identifier: MIT
"""Detection targets of different lengths, padded to one, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .images import listed, pair

__all__ = ["PaddedTarget", "pad_targets", "per_box_fields", "unpad_targets"]

_PER_BOX = ("boxes", "labels", "masks", "keypoints", "area", "iscrowd", "scores", "keypoints_scores")
_PER_IMAGE = ("image_id", "size", "orig_size", "original_size")
_OVERFLOWS = ("error", "largest", "random")


class PaddedTarget(dict):
    """A target whose per-box fields have one length; `per_box` names them, `valid` is one of them."""

    per_box: tuple[str, ...] = ()


def pad_targets(
    targets: Sequence[dict[str, Any]],
    max_boxes: int,
    *,
    overflow: str = "error",
    label: int = -1,
    size: int | tuple[int, int] | None = None,
    per_box: Collection[str] | None = None,
    generator: torch.Generator | None = None,
) -> list[PaddedTarget]:
    """Pad every per-box field of detection targets to max_boxes entries and add `valid`.

    Padded boxes are (0, 0, 1, 1), which passes the checks of detectors for positive width and height; padded areas
    are 1, padded labels are `label`, everything else is 0.

    Args:
        targets: one dict per image with `boxes` (n, 4) as (x1, y1, x2, y2) and any of `labels` (n,), `masks`
            (n, h, w), `keypoints` (n, k, 3), `area` (n,), `iscrowd` (n,) and further fields.
        max_boxes: entries of every per-box field afterwards.
        overflow: what happens to a target with more boxes: "error", or only max_boxes of them are kept, in their
            order: the "largest" by area or a "random" choice.
        label: the label of padding, a number that no class has.
        size: (H, W), or one number for both, to which masks are padded at the right and bottom; None leaves their
            size.
        per_box: names of all per-box fields. None: the usual names, and every other tensor that has as many entries
            as there are boxes, in each target of the batch; name them if that can be so by accident.
        generator: for "random"; None is torch's default one.
    Returns: new dicts with `valid` (max_boxes,) bool. Fields per image stay as they are.
    Raises: TypeError for targets that are not dicts and fields that are not tensors; ValueError for missing or
        misshapen boxes, fields of other lengths, a label that a class has or that the labels' dtype has not, masks
        larger than size, more boxes than max_boxes, and targets that were padded already.
    """
    if overflow not in _OVERFLOWS:
        raise ValueError(f"pad_targets: overflow must be one of {', '.join(_OVERFLOWS)}, got {overflow!r}")
    if not isinstance(max_boxes, int) or isinstance(max_boxes, bool) or max_boxes < 1:
        raise ValueError(f"pad_targets: max_boxes must be a positive int, got {max_boxes!r}")
    if not isinstance(label, (int, float)) or isinstance(label, bool):
        raise TypeError(f"pad_targets: label must be a number, got {label!r}")
    size = None if size is None else pair("pad_targets", "size", size)
    targets = listed("pad_targets", "targets", targets)
    for i, target in enumerate(targets):
        _check(i, target, label, None if overflow != "error" else max_boxes)
        _check_masks(i, target.get("masks"), size)
    names = per_box_fields(targets, per_box)
    return [
        _pad(t, [n for n in names if n in t], max_boxes, overflow, label, size, generator) for t in targets
    ]


def unpad_targets(
    targets: Sequence[dict[str, Any]], per_box: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """The targets that `pad_targets` was given: per-box fields without padding, and without `valid`.

    Boxes that overflowed do not come back, nor does the size of masks that were padded.

    Args: per_box: names of the per-box fields; None: those that pad_targets noted, or the usual names if the
        targets were rebuilt as ordinary dicts.
    Raises: TypeError for targets that are not dicts; ValueError for a target without `valid`.
    """
    found = []
    for i, target in enumerate(listed("unpad_targets", "targets", targets)):
        if not isinstance(target, dict):
            raise TypeError(f"unpad_targets: target {i} is a {type(target).__name__}, expected a dict")
        if "valid" not in target:
            raise ValueError(f"unpad_targets: target {i} has no field 'valid'")
        names = set(per_box or getattr(target, "per_box", ()) or _PER_BOX)
        count = int(target["valid"].sum())
        found.append({k: v[:count] if k in names else v for k, v in target.items() if k != "valid"})
    return found


def _check_boxes(index: int, target: dict[str, Any]) -> Tensor:
    if not isinstance(target, dict):
        raise TypeError(
            f"pad_targets: target {index} is a {type(target).__name__}, expected a dict with boxes"
        )
    boxes = target.get("boxes")
    if not isinstance(boxes, Tensor) or boxes.dim() != 2 or boxes.shape[1] != 4:
        what = tuple(boxes.shape) if isinstance(boxes, Tensor) else type(boxes).__name__
        raise ValueError(f"pad_targets: target {index} needs boxes of shape (n, 4), got {what}")
    return boxes


def _check(index: int, target: dict[str, Any], label: int, limit: int | None) -> None:
    boxes = _check_boxes(index, target)
    if "valid" in target:
        raise ValueError(f"pad_targets: target {index} has a field 'valid': it was padded, see unpad_targets")
    if limit is not None and len(boxes) > limit:
        raise ValueError(
            f"pad_targets: target {index} has {len(boxes)} boxes, more than max_boxes={limit}; "
            'overflow="largest" or "random" keeps some'
        )
    labels = target.get("labels")
    if isinstance(labels, Tensor) and torch.tensor(label).to(labels.dtype).item() != label:
        raise ValueError(
            f"pad_targets: label {label} of padding does not fit {labels.dtype}, the dtype of the labels of target "
            f"{index}; pass another, or labels of torch.int64"
        )
    if isinstance(labels, Tensor) and labels.numel() and bool((labels == label).any()):
        raise ValueError(f"pad_targets: label {label} of padding is a label of target {index}; pass another")


def _check_masks(index: int, masks: Any, size: tuple[int, int] | None) -> None:
    if size is None or not isinstance(masks, Tensor):
        return
    if masks.dim() != 3:
        shape = tuple(masks.shape)
        raise ValueError(f"pad_targets: masks of target {index} have the shape {shape}, expected (n, h, w)")
    h, w = masks.shape[1:]
    if h > size[0] or w > size[1]:
        raise ValueError(
            f"pad_targets: masks of {h} x {w} pixels, of target {index}, are larger than size {size}"
        )


def per_box_fields(targets: Sequence[dict[str, Any]], per_box: Collection[str] | None) -> list[str]:
    """Names of the fields with one entry per box, checked in every target; arguments and errors as of `pad_targets`."""
    if isinstance(per_box, str):
        raise TypeError(f"pad_targets: per_box must be several names, such as ({per_box!r},), got one string")
    for i, target in enumerate(targets):
        _check_boxes(i, target)
    chosen = []
    for name in dict.fromkeys(k for t in targets for k in t):
        lengths = [(i, _length(t[name]), len(t["boxes"])) for i, t in enumerate(targets) if name in t]
        known = name in (per_box if per_box is not None else _PER_BOX) or name == "boxes"
        if not known and (per_box is not None or name in _PER_IMAGE):
            continue
        fits = [length == boxes for _, length, boxes in lengths]
        if known and not all(fits):
            i, length, boxes = lengths[fits.index(False)]
            if length is None:
                kind = type(targets[i][name]).__name__
                what = "a tensor without entries" if isinstance(targets[i][name], Tensor) else f"a {kind}"
                raise TypeError(
                    f"pad_targets: field {name!r} of target {i} is {what}, expected one entry per box"
                )
            raise ValueError(
                f"pad_targets: field {name!r} of target {i} has {length} entries for {boxes} boxes"
            )
        if known or all(fits):
            chosen.append(name)
        elif any(fits) and len({boxes for _, _, boxes in lengths}) > 1 and not _constant(lengths):
            raise ValueError(
                f"pad_targets: field {name!r} has (entries, boxes) {[(n, b) for _, n, b in lengths]}; "
                "state with per_box=... which fields have one entry per box"
            )
    return chosen


def _constant(lengths: list[tuple[int, int | None, int]]) -> bool:
    """True for a field of one length in every target, which is a property of the image."""
    return len({length for _, length, _ in lengths}) == 1


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, Tensor) and value.dim() else None


def _pad(
    target: dict[str, Any],
    names: list[str],
    max_boxes: int,
    overflow: str,
    label: int,
    size: tuple[int, int] | None,
    generator: torch.Generator | None,
) -> PaddedTarget:
    boxes = target["boxes"]
    kept = _kept(boxes, max_boxes, overflow, generator)
    count = min(len(boxes), max_boxes)
    padded = PaddedTarget(target)
    for name in names:
        value = target[name] if kept is None else target[name][kept]
        if name == "masks" and size is not None:
            value = _pad_masks(value, size)
        tail = value.new_zeros((max_boxes - count, *value.shape[1:]))
        if name == "boxes":
            tail[:, 2:] = 1
        elif name in ("labels", "area"):
            tail.fill_(label if name == "labels" else 1)
        padded[name] = torch.cat([value, tail])
    padded["valid"] = torch.arange(max_boxes, device=boxes.device) < count
    padded.per_box = (*names, "valid")
    return padded


def _kept(boxes: Tensor, max_boxes: int, overflow: str, generator: torch.Generator | None) -> Tensor | None:
    """Indices of the boxes to keep, in their order; None for all."""
    if len(boxes) <= max_boxes:
        return None
    if overflow == "random":
        chosen = torch.randperm(len(boxes), generator=generator)[:max_boxes].to(boxes.device)
    else:
        sides = boxes if boxes.dtype is torch.float64 else boxes.float()  # areas may exceed small dtypes
        area = (sides[:, 2] - sides[:, 0]) * (sides[:, 3] - sides[:, 1])
        chosen = area.argsort(descending=True, stable=True)[:max_boxes]
    return chosen.sort().values


def _pad_masks(masks: Tensor, size: tuple[int, int]) -> Tensor:
    h, w = masks.shape[-2:]
    return F.pad(masks, (0, size[1] - w, 0, size[0] - h))
