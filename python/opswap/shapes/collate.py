# SPDX-License-Identifier: MIT
"""Batches of one size from a DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .arrays import batch_images
from .images import PaddedImages, floating, listed, pad_images
from .targets import PaddedTarget, pad_targets, per_box_fields

__all__ = ["CollateFixed", "collate_fixed"]


@dataclass(frozen=True)
class CollateFixed:
    """The `collate_fn` that `collate_fixed` makes; it can be pickled, as worker processes need."""

    max_boxes: int
    images: dict[str, Any]
    arrays: dict[str, Any]
    targets: dict[str, Any]

    def __call__(
        self, samples: Sequence[tuple[Any, dict[str, Any]]]
    ) -> tuple[PaddedImages, list[PaddedTarget]]:
        """(image, target) pairs as (PaddedImages, targets of one length), boxes in the batch's coordinates."""
        for i, sample in enumerate(samples):
            if not isinstance(sample, (tuple, list)) or len(sample) != 2:
                raise TypeError(
                    f"collate_fixed: sample {i} is a {type(sample).__name__}, expected a pair (image, target)"
                )
        if not samples:
            raise ValueError("collate_fixed: there are no samples")
        images, targets = zip(*samples, strict=True)
        batch = self._batch(images)
        names = per_box_fields(
            targets, self.targets["per_box"]
        )  # a crop may leave as many as there are by accident
        fitted = [_fit_target(t, batch, i, names) for i, t in enumerate(targets)]
        height, width = batch.images.shape[-2:]
        options = {**self.targets, "per_box": names}
        return batch, pad_targets(fitted, self.max_boxes, size=(height, width), **options)

    def _batch(self, images: Sequence[Any]) -> PaddedImages:
        if any(isinstance(x, np.ndarray) for x in images):
            return batch_images(images, **self.images, **self.arrays)
        given = [name for name, value in self.arrays.items() if value is not None]
        if given:
            raise TypeError(
                f"collate_fixed: {', '.join(given)} need images that are NumPy arrays (h, w, c), "
                f"image 0 is a {type(images[0]).__name__}"
            )
        return pad_images(images, **self.images)


def collate_fixed(
    size: int | tuple[int, int] | None = None,
    *,
    max_boxes: int,
    buckets: Sequence[int | tuple[int, int]] | None = None,
    divisor: int | tuple[int, int] | None = None,
    value: float | Sequence[float] = 0,
    mode: str = "error",
    memory_format: torch.memory_format = torch.contiguous_format,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
    overflow: str = "error",
    label: int = -1,
    per_box: Sequence[str] | None = None,
) -> CollateFixed:
    """A `collate_fn` for DataLoader: pairs (image, target) become (PaddedImages, targets of one length).

    Arguments as of `pad_images` and `pad_targets`. Images are tensors (C, h, w), or NumPy arrays (h, w, C), which
    `batch_images` puts together; mean, std, scale and dtype are its arguments, for arrays alone. If an image is
    resized or cropped, its boxes, keypoints, areas and masks follow; boxes that a crop leaves without area are dropped.
    """
    images: dict[str, Any] = {
        "size": size,
        "buckets": None if buckets is None else listed("collate_fixed", "buckets", buckets),
        "divisor": divisor,
        "value": value,
        "mode": mode,
    }
    images["memory_format"] = memory_format
    arrays = {"mean": mean, "std": std, "scale": scale, "dtype": dtype}
    return CollateFixed(max_boxes, images, arrays, {"overflow": overflow, "label": label, "per_box": per_box})


def _fit_target(
    target: dict[str, Any], batch: PaddedImages, index: int, per_box: Sequence[str]
) -> dict[str, Any]:
    """The target in the coordinates of its image in the batch."""
    mode = batch.modes[index]
    if mode == "kept":
        return target
    (h, w), (down, across) = batch.sizes[index], batch.scale(index)
    boxes = floating(target["boxes"])
    scaled = boxes * boxes.new_tensor([across, down, across, down])
    scaled = torch.minimum(scaled, scaled.new_tensor([w, h, w, h]))
    found = {**target, "boxes": scaled}
    if "keypoints" in target:
        points = floating(target["keypoints"]).clone()
        points[..., :2] *= points.new_tensor([across, down])
        outside = (points[..., 0] >= w) | (points[..., 1] >= h)
        points[..., 2:][outside] = 0  # not visible
        found["keypoints"] = points
    if "masks" in target:
        found["masks"] = _fit_masks(target["masks"], h, w, mode)
    if "area" in target:
        found["area"] = target["area"] * (down * across) if mode == "resized" else _area(found)
    return found if mode == "resized" else _drop_empty(found, per_box)


def _area(target: dict[str, Any]) -> torch.Tensor:
    """What is left of each object's area after a crop: that of its mask, or of its box if it has no mask."""
    if "masks" in target:
        left = (target["masks"] != 0).flatten(1).sum(1)
    else:
        left = (target["boxes"][:, 2:] - target["boxes"][:, :2]).clamp(min=0).prod(1)
    return left.to(target["area"].dtype)


def _fit_masks(masks: torch.Tensor, h: int, w: int, mode: str) -> torch.Tensor:
    if mode == "cropped":
        return masks[..., :h, :w]
    small = torch.nn.functional.interpolate(masks[:, None].float(), (h, w), mode="nearest-exact")
    return small[:, 0].to(masks.dtype)


def _drop_empty(target: dict[str, Any], per_box: Sequence[str]) -> dict[str, Any]:
    """The target without the boxes that the crop cut off whole."""
    boxes = target["boxes"]
    kept = ((boxes[:, 2:] - boxes[:, :2]) > 0).all(1)
    return {k: v[kept] if k in per_box else v for k, v in target.items()}
