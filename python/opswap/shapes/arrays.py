# SPDX-License-Identifier: MIT
"""Images as NumPy arrays, normalised, in one batch of a fixed size: the work of a DataLoader's worker in one pass."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import get_worker_info

from .. import _np
from .._torch import empty_shared
from .images import PaddedImages, batch_size, check_options, fill_values, fit, listed

__all__ = ["batch_images"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_KEPT = {
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_NAMES = {dtype: name for name, dtype in _KEPT.items()} | {torch.bfloat16: "bfloat16"}
# At which NumPy asks for huge pages too; page by page, 39 MB cost 15 ms, in huge pages 3 ms (Zen 5).
_HUGE_BYTES = 4 << 20
_SCALES = {"uint8": 1 / 255, "uint16": 1 / 65535}


def batch_images(
    arrays: Sequence[NDArray[Any]],
    size: int | tuple[int, int] | None = None,
    *,
    buckets: Iterable[int | tuple[int, int]] | None = None,
    divisor: int | tuple[int, int] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
    value: float | Sequence[float] = 0,
    mode: str = "error",
    memory_format: torch.memory_format = torch.contiguous_format,
    out: Tensor | NDArray[Any] | None = None,
) -> PaddedImages:
    """Put images of different sizes into one batch: converted, normalised, and padded at the right and at the bottom.

    One pass over the images, on the thread that calls, without Python's lock. In a worker of a DataLoader the batch is
    in shared memory from the start, so that the loader does not copy it.

    Args:
        arrays: NumPy arrays (h, w, c) or (h, w) of one number of channels and one dtype: uint8, uint16, float16,
            float32 or float64 (which is rounded to float32 first). Any strides: flips, crops, BGR[..., ::-1].
        size, buckets, divisor: as of `pad_images`; exactly one of the three is given.
        mean, std, scale: numbers, or for mean and std one per channel. The elements become
            (x * scale - mean) / std in float32, every operation rounded: the bits of torchvision's ToDtype(scale=True)
            and Normalize. By default mean is 0, std is 1, and scale is 1 / 255 for uint8, 1 / 65535 for uint16, else 1.
        dtype: of the batch: torch.float32, torch.bfloat16 or torch.float16, to which results are rounded (to nearest,
            ties to even), or the dtype of the images. By default torch.float32 if mean, std or scale is given, else
            that of the images, whose elements are then copied as they are (float64: torch.float32).
        value: what the batch holds at padding, not normalised; or one value per channel.
        mode: as of `pad_images`: "error", "resize" or "crop". Resized images keep their dtype.
        memory_format: of the batch: torch.contiguous_format or torch.channels_last.
        out: a tensor, or an array, (N, C, H, W) for the batch, in that memory format.
    Returns: PaddedImages, whose images are (N, C, H, W); `out` or its memory if it was given.
    Raises: TypeError for images that are not arrays, or of other or different dtypes, and for a dtype that the images
        cannot become; ValueError for different channels, an empty list, an image without pixels, sizes as in
        `pad_images`, mean, std or scale that are not finite or of another length, a std that is not positive, a value
        that the dtype cannot hold, and an `out` that does not fit or shares memory with an image. Nothing is written
        to `out` then.
    """
    check_options("batch_images", mode, memory_format)
    images = tuple(listed("batch_images", "images", arrays))
    given, channels, originals = _np.examine(images)
    height, width = batch_size(
        originals, size, buckets=buckets, divisor=divisor, fit=mode != "error", name="batch_images"
    )
    numbers = (_numbers(n, v) for n, v in (("mean", mean), ("std", std), ("scale", scale)))
    dtype, *factors = _factors(given, channels, *numbers, dtype)
    padding = _padding(_numbers("value", value), channels, dtype)
    shape = (len(images), channels, height, width)
    batch = _empty(shape, dtype, memory_format) if out is None else _checked(out, shape, dtype, memory_format)
    modes, sizes = ("kept",) * len(images), originals
    if mode != "error":
        fitted = [_fit(x, s, height, width, mode) for x, s in zip(images, originals, strict=True)]
        images, modes = zip(*fitted, strict=True)
        sizes = tuple(x.shape[:2] for x in images)
    last = memory_format == torch.channels_last
    rows = _bits(batch.permute(0, 2, 3, 1) if last else batch)
    if out is None and rows.nbytes >= _HUGE_BYTES and not batch.is_shared():
        _np.huge_pages(rows)
    _np.fill(images, rows, _NAMES[dtype], last, padding, *factors)
    if out is not None and not batch.is_inference():
        torch.autograd.graph.increment_version(batch)
    return PaddedImages(batch, sizes, originals, modes)


def _numbers(name: str, values: Any) -> Any:
    """Numbers as tuples, so that what is made of them can be kept for the next batch. Raises: TypeError."""
    if isinstance(values, (np.ndarray, Tensor)):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return tuple(_numbers(name, v) for v in values)
    if isinstance(values, (dict, set)):
        raise TypeError(f"batch_images: {name} must be a number or numbers, got {values!r}")
    return values


@functools.lru_cache(64)
def _padding(value: Any, channels: int, dtype: torch.dtype) -> NDArray[Any]:
    """One element per channel, as `_bits`."""
    values = fill_values(value, channels, dtype, "batch_images")
    return _bits(values.reshape(-1).expand(channels).contiguous())


@functools.lru_cache(64)
def _factors(
    given: str,
    channels: int,
    mean: float | Sequence[float] | None,
    std: float | Sequence[float] | None,
    scale: float | None,
    dtype: torch.dtype | None,
) -> tuple[torch.dtype, float | None, NDArray[np.float32], NDArray[np.float32]]:
    """The dtype of the batch, scale (None: elements are copied as they are), mean and std."""
    kept, arithmetic = _KEPT.get(given), not mean is std is scale is None
    dtype = dtype or (torch.float32 if arithmetic or kept is None else kept)
    if dtype not in _FLOATS and (dtype != kept or arithmetic):
        what = f"{given} images" + (" that are normalised" if arithmetic else "")
        raise TypeError(
            f"batch_images: {what} cannot become {dtype}, only torch.float32, torch.bfloat16 and torch.float16"
            + ("" if arithmetic or kept in (None, *_FLOATS) else f", or stay {kept}")
        )
    means = _per_channel("mean", 0.0 if mean is None else mean, channels)
    stds = _per_channel("std", 1.0 if std is None else std, channels)
    if (stds <= 0).any():
        raise ValueError(f"batch_images: std must be positive in float32, got {std!r}")
    if dtype == kept and not arithmetic:
        return dtype, None, means, stds
    if np.ndim(_SCALES.get(given, 1.0) if scale is None else scale):
        raise ValueError(f"batch_images: scale must be one number, got {scale!r}")
    (factor,) = _per_channel("scale", _SCALES.get(given, 1.0) if scale is None else scale, 1)
    if factor == 0:
        raise ValueError(f"batch_images: scale must not be zero in float32, got {scale!r}")
    return dtype, float(factor), means, stds


def _per_channel(name: str, values: float | Sequence[float], channels: int) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            found = np.asarray(values, dtype=np.float64).astype(np.float32)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"batch_images: {name} must be a number or numbers, got {values!r}") from None
    if found.ndim > 1 or (found.ndim == 1 and len(found) != channels):
        raise ValueError(f"batch_images: {name} has the shape {found.shape} for {channels} channels")
    if not np.isfinite(found).all():
        raise ValueError(f"batch_images: {name} must be finite in float32, got {values!r}")
    return np.ascontiguousarray(np.broadcast_to(found, channels))


def _fit(
    image: NDArray[Any], size: tuple[int, int], height: int, width: int, mode: str
) -> tuple[NDArray[Any], str]:
    """The image, cropped or resized if it is too large, and which."""
    if size[0] <= height and size[1] <= width:
        return image, "kept"
    if mode == "crop":
        return image[:height, :width], "cropped"
    pixels = torch.from_numpy(np.array(image if image.ndim == 3 else image[..., None])).permute(2, 0, 1)
    resized, how = fit(pixels, height, width, mode)
    return resized.permute(1, 2, 0).numpy(), how


def _empty(shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype, device="cpu", memory_format=memory_format)
    return empty_shared(shape, dtype, memory_format)


def _checked(
    out: Tensor | NDArray[Any], shape: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    """`out` as a tensor. Raises: TypeError or ValueError if the batch cannot be written to it."""
    if isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise ValueError("batch_images: out is read-only")
        out = torch.from_numpy(out)
    if not isinstance(out, Tensor):
        raise TypeError(f"batch_images: out is a {type(out).__name__}, expected a tensor or an array")
    if out.dtype != dtype or out.device.type != "cpu" or out.layout != torch.strided or out.requires_grad:
        grad = " that requires grad" if out.requires_grad else ""
        raise TypeError(
            f"batch_images: out is {out.dtype} on {out.device}{grad}, expected {dtype} on the CPU"
        )
    if out.shape != shape:
        raise ValueError(f"batch_images: out has the shape {tuple(out.shape)}, the batch has {shape}")
    if not out.is_contiguous(memory_format=memory_format):
        raise ValueError(f"batch_images: out has the strides {out.stride()}, which is not {memory_format}")
    return out


def _bits(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory as an array; NumPy has no bfloat16: its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
