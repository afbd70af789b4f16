# SPDX-License-Identifier: MIT
"""Images of different sizes in one batch of a fixed size, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "MODES",
    "PaddedImages",
    "batch_size",
    "check_options",
    "fill_values",
    "fit",
    "floating",
    "listed",
    "pad_images",
    "pair",
    "unpad_images",
    "unpad_predictions",
]

MODES = ("error", "resize", "crop")


class PaddedImages(NamedTuple):
    """A batch of images, each in the upper left corner of its place.

    images: (N, C, H, W). sizes: (height, width) of each image in the batch.
    original_sizes: (height, width) of each image as it was given; another one only after "resize" or "crop".
    modes: "kept", "resized" or "cropped" for each image.
    """

    images: Tensor
    sizes: tuple[tuple[int, int], ...]
    original_sizes: tuple[tuple[int, int], ...]
    modes: tuple[str, ...]

    def valid(self, stride: int = 1) -> Tensor:
        """(N, H / stride, W / stride) bool, rounded up: True at the pixels of an image, False at padding.

        Args: stride: only every stride-th row and column, which are those of features behind convolutions of that
            stride in all.
        Raises: ValueError if stride is not positive.
        """
        if stride < 1:
            raise ValueError(f"stride must be at least 1, got {stride}")
        height, width = self.images.shape[-2:]
        sizes = torch.tensor(self.sizes, device=self.images.device).reshape(-1, 2, 1)
        rows = torch.arange(0, height, stride, device=self.images.device) < sizes[:, 0]
        columns = torch.arange(0, width, stride, device=self.images.device) < sizes[:, 1]
        return rows[:, :, None] & columns[:, None, :]

    def scale(self, index: int) -> tuple[float, float]:
        """What the image's y and x coordinates were multiplied by: 1 if it was not resized."""
        if self.modes[index] != "resized":
            return 1.0, 1.0
        (height, width), (h, w) = self.original_sizes[index], self.sizes[index]
        return h / height, w / width


def pad_images(
    images: Sequence[Tensor],
    size: int | tuple[int, int] | None = None,
    *,
    buckets: Iterable[int | tuple[int, int]] | None = None,
    divisor: int | tuple[int, int] | None = None,
    value: float | Sequence[float] = 0,
    mode: str = "error",
    memory_format: torch.memory_format = torch.contiguous_format,
) -> PaddedImages:
    """Put images of different sizes into one batch, padded at the right and at the bottom.

    Args:
        images: tensors (C, h, w) of one C, dtype and device.
        size: (H, W) of the batch, or one number for both. buckets: such sizes, of which the smallest that holds
            every image is used. divisor: H and W are the next multiples of it. Exactly one of the three is given.
        value: what padding is filled with, or one value per channel.
        mode: what happens to an image that is larger than the size (or than the largest bucket): "error",
            "resize" (smaller by one factor for both sides, bilinear with antialiasing) or "crop" (right and bottom).
        memory_format: of the batch: torch.contiguous_format or torch.channels_last.
    Returns: PaddedImages.
    Raises: TypeError for images that are not tensors, or of different dtypes or devices; ValueError for different
        channels, an empty list, an image without pixels, sizes that are not positive, an image that is too large.
    """
    images = listed("pad_images", "images", images)
    _check_images(images)
    check_options("pad_images", mode, memory_format)
    originals = tuple((int(x.shape[1]), int(x.shape[2])) for x in images)
    height, width = batch_size(originals, size, buckets=buckets, divisor=divisor, fit=mode != "error")
    fitted = [fit(x, height, width, mode) for x in images]
    channels = images[0].shape[0]
    shape = (len(images), channels, height, width)
    batch = torch.empty(shape, dtype=images[0].dtype, device=images[0].device, memory_format=memory_format)
    fill = fill_values(value, channels, batch.dtype, device=batch.device)
    for i, (image, _) in enumerate(fitted):
        h, w = image.shape[1:]
        batch[i, :, :h, :w] = image
        batch[i, :, h:] = fill
        batch[i, :, :h, w:] = fill
    sizes = tuple((int(x.shape[1]), int(x.shape[2])) for x, _ in fitted)
    return PaddedImages(batch, sizes, originals, tuple(m for _, m in fitted))


def unpad_images(padded: PaddedImages) -> list[Tensor]:
    """The images without their padding, as views (C, h, w) of the batch.

    They are exactly the tensors given to `pad_images`, but for images that it resized or cropped.

    Raises: TypeError for anything but PaddedImages.
    """
    _check_padded("unpad_images", padded)
    return [x[:, :h, :w] for x, (h, w) in zip(padded.images, padded.sizes, strict=True)]


def unpad_predictions(predictions: Sequence[dict[str, Any]], padded: PaddedImages) -> list[dict[str, Any]]:
    """Predictions on a padded batch, in the coordinates of the images as they were given to `pad_images`.

    Args: predictions: one dict per image; of its entries `boxes` (n, 4) as (x1, y1, x2, y2) and `keypoints`
        (n, k, 2 or 3) are scaled, integers becoming float32, boxes also clipped to the image; `masks` (n, h, w) or
        (n, 1, h, w) lose their padding and get the image's size; the others stay as they are.
    Returns: new dicts.
    Raises: ValueError if the numbers of predictions and of images differ; TypeError for anything but PaddedImages.
    """
    _check_padded("unpad_predictions", padded)
    if len(predictions) != len(padded.sizes):
        raise ValueError(f"unpad_predictions: {len(predictions)} predictions for {len(padded.sizes)} images")
    return [_unpad_prediction(p, padded, i) for i, p in enumerate(predictions)]


def batch_size(
    sizes: Sequence[tuple[int, int]],
    size: int | tuple[int, int] | None = None,
    *,
    buckets: Iterable[int | tuple[int, int]] | None = None,
    divisor: int | tuple[int, int] | None = None,
    fit: bool = False,
    name: str = "pad_images",
) -> tuple[int, int]:
    """(H, W) of the batch that holds images of these sizes; arguments as of `pad_images`.

    Args: fit: larger images will be made to fit, so that a size that is too small is not an error.
        name: of the function that was called, for errors.
    """
    if sum(option is not None for option in (size, buckets, divisor)) != 1:
        raise TypeError(f"{name}: give exactly one of size, buckets and divisor")
    heights, widths = zip(*sizes, strict=True)
    needed = max(heights), max(widths)
    if divisor is not None:
        tall, wide = (-(-n // d) * d for n, d in zip(needed, pair(name, "divisor", divisor), strict=True))
        return tall, wide
    if size is not None:
        choice = pair(name, "size", size)
        if fit or _holds(choice, needed):
            return choice
        return _too_large(name, sizes, choice, f"size {choice}")
    pairs = (pair(name, "buckets", b) for b in listed(name, "buckets", buckets))
    choices = sorted(pairs, key=lambda b: (b[0] * b[1], b))
    if not choices:
        raise ValueError(f"{name}: buckets is empty")
    found = next((b for b in choices if _holds(b, needed)), None)
    if found is not None:
        return found
    return choices[-1] if fit else _too_large(name, sizes, choices[-1], f"each of the buckets {choices}")


def check_options(name: str, mode: str, memory_format: torch.memory_format) -> None:
    """Raise ValueError for a mode or a memory format that `name`, the function that was called, does not have."""
    if mode not in MODES:
        raise ValueError(f"{name}: mode must be one of {', '.join(MODES)}, got {mode!r}")
    if memory_format not in (torch.contiguous_format, torch.channels_last):
        raise ValueError(f"{name}: memory_format must be contiguous or channels_last, got {memory_format}")


def _too_large(
    name: str, sizes: Sequence[tuple[int, int]], choice: tuple[int, int], what: str
) -> tuple[int, int]:
    index, found = next(((i, s) for i, s in enumerate(sizes) if not _holds(choice, s)), (None, None))
    if found is None:  # no single image is: the highest and the widest are two
        needed = max(h for h, _ in sizes), max(w for _, w in sizes)
        raise ValueError(f"{name}: the batch needs {needed}, more than {what}")
    raise ValueError(
        f"{name}: image {index} of {found[0]} x {found[1]} pixels is larger than {what}; "
        'mode="resize" or "crop" makes it fit'
    )


def _holds(size: tuple[int, int], needed: tuple[int, int]) -> bool:
    return size[0] >= needed[0] and size[1] >= needed[1]


def pair(name: str, option: str, value: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of an option that has one number or both. Raises: ValueError."""
    found = tuple(value) if isinstance(value, Iterable) else (value, value)
    if len(found) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in found):
        raise ValueError(f"{name}: {option} must be a positive int or two of them, got {value!r}")
    return found


def listed(name: str, what: str, values: Any) -> list[Any]:
    """The values of an iterable, which may be read once only. Raises: TypeError."""
    try:
        iterator = iter(values)
    except TypeError:
        raise TypeError(f"{name}: {what} must be several, such as a list, got {values!r}") from None
    return list(iterator)


def _check_padded(name: str, padded: Any) -> None:
    if not isinstance(padded, PaddedImages):
        raise TypeError(f"{name}: expected PaddedImages, got {type(padded).__name__}")


def _check_images(images: Sequence[Tensor]) -> None:
    if not len(images):
        raise ValueError("pad_images: there are no images")
    for i, x in enumerate(images):
        if not isinstance(x, Tensor):
            raise TypeError(f"pad_images: image {i} is a {type(x).__name__}, expected a tensor (C, h, w)")
        if x.layout is not torch.strided:
            raise TypeError(f"pad_images: image {i} is {x.layout}, expected a dense tensor (C, h, w)")
        if x.dim() != 3 or 0 in x.shape:
            raise ValueError(
                f"pad_images: image {i} has the shape {tuple(x.shape)}, expected (C, h, w) with pixels"
            )
        first = images[0]
        if x.shape[0] != first.shape[0]:
            raise ValueError(f"pad_images: image {i} has {x.shape[0]} channels, image 0 has {first.shape[0]}")
        if x.dtype != first.dtype or x.device != first.device:
            raise TypeError(
                f"pad_images: image {i} is {x.dtype} on {x.device}, image 0 is {first.dtype} on {first.device}"
            )


def fill_values(
    value: float | Sequence[float],
    channels: int,
    dtype: torch.dtype,
    name: str = "pad_images",
    device: torch.device | str = "cpu",
) -> Tensor:
    """What padding is filled with: (C, 1, 1) or (1, 1, 1) of this dtype.

    Raises: TypeError for values that are not numbers, and ValueError, under the name of the function that was called.
    """
    try:
        fill = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError):
        raise TypeError(f"{name}: value must be a number or numbers, got {value!r}") from None
    if fill.dim() > 1 or (fill.dim() == 1 and fill.shape[0] != channels):
        raise ValueError(f"{name}: value has {tuple(fill.shape)} entries for {channels} channels")
    if not (dtype.is_floating_point or dtype.is_complex) and not torch.equal(
        fill, fill.to(dtype).to(fill.dtype)
    ):
        raise ValueError(f"{name}: value {value!r} is not a number of {dtype}")
    if not torch.equal(fill.isinf(), fill.to(dtype).isinf()):
        raise ValueError(f"{name}: value {value!r} is too large for {dtype}")
    return fill.to(device=device, dtype=dtype).reshape(-1, 1, 1)


def fit(image: Tensor, height: int, width: int, mode: str) -> tuple[Tensor, str]:
    """The image (C, h, w), cropped or resized if it is larger than (height, width), and what was done to it."""
    h, w = image.shape[1:]
    if h <= height and w <= width:
        return image, "kept"
    if mode == "crop":
        return image[:, :height, :width], "cropped"
    factor = min(height / h, width / w)
    size = min(height, max(1, round(h * factor))), min(width, max(1, round(w * factor)))
    whole, large = not image.is_floating_point(), image.dtype.itemsize >= 4
    wide = image.to(torch.float64 if large else torch.float32) if whole or not large else image
    small = F.interpolate(wide[None], size, mode="bilinear", antialias=True, align_corners=False)[0]
    if whole:
        small = small.round()
    if whole and large:
        limits = torch.iinfo(image.dtype)
        top = float(limits.max)
        small = small.clamp(limits.min, top if int(top) <= limits.max else math.nextafter(top, 0))
    return small.to(image.dtype), "resized"


def floating(coordinates: Tensor) -> Tensor:
    """Coordinates that a factor can be applied to: integers as float32."""
    return coordinates if coordinates.is_floating_point() else coordinates.float()


def _unpad_prediction(prediction: dict[str, Any], padded: PaddedImages, index: int) -> dict[str, Any]:
    found = dict(prediction)
    down, across = padded.scale(index)
    height, width = padded.original_sizes[index]
    if "boxes" in found:
        boxes = floating(found["boxes"])
        boxes = boxes / boxes.new_tensor([across, down, across, down])
        limits = boxes.new_tensor([width, height, width, height])
        found["boxes"] = torch.minimum(boxes.clamp(min=0), limits)
    if "keypoints" in found:
        points = floating(found["keypoints"]).clone()
        points[..., :2] /= points.new_tensor([across, down])
        found["keypoints"] = points
    if "masks" in found:
        found["masks"] = _unpad_masks(found["masks"], padded, index)
    return found


def _unpad_masks(masks: Tensor, padded: PaddedImages, index: int) -> Tensor:
    h, w = padded.sizes[index]
    height, width = padded.original_sizes[index]
    masks = masks[..., :h, :w]
    if padded.modes[index] == "cropped":
        return F.pad(masks, (0, width - w, 0, height - h))
    if padded.modes[index] == "resized":
        if not masks.numel():
            return masks.new_zeros((*masks.shape[:-2], height, width))
        flat = masks.reshape(1, -1, h, w)
        wide = flat if flat.is_floating_point() else flat.float()
        large = F.interpolate(wide, (height, width), mode="bilinear", align_corners=False)
        large = large if flat.is_floating_point() else large.round().to(flat.dtype)
        return large.reshape(*masks.shape[:-2], height, width)
    return masks
