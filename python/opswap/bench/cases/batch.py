# SPDX-License-Identifier: MIT
"""Images of NumPy into batches, at the sizes of classifiers and detectors, against NumPy's and torch's expressions.

Photographs of bytes whose sides are 3/4 of the batch's to all of it; both other forms work image by image, as a collate
function does, with the same operations in float32. The results have equal bits.

The roof is torch's copy of half as many bytes as opswap reads (the images) and writes (the batch) together, which
moves as many in all; it runs in turn with opswap, and both allocate as many new bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opswap._table import short_name
from opswap.bench.case import LAYOUTS, Case
from opswap.shapes import batch_images

__all__ = ["cases"]

Array = NDArray[np.uint8]

_MEAN, _STD, _SCALE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 1 / 255
_DTYPES = (torch.float32, torch.bfloat16, torch.uint8)


def cases(batch: int) -> Iterator[Case]:
    """Batches of `batch` images of 224 pixels, and of fewer larger ones."""
    for size, count in ((224, batch), (640, max(1, batch // 4)), (1280, max(1, batch // 16))):
        generator = np.random.default_rng(0)
        sides = generator.integers(size * 3 // 4, size + 1, (count, 2))
        for dtype in _DTYPES:
            for layout, memory_format in LAYOUTS.items():
                build = partial(_build, size, sides.tolist(), dtype, memory_format)
                written = 3 * count * size * size * dtype.itemsize
                moved = 3 * int(sides.prod(1).sum()) + written
                short = short_name(dtype)
                shape, ours = f"{count},3,{size},{size}", {"opswap": layout}
                yield Case(
                    "batch_images",
                    shape,
                    short,
                    "forward",
                    build,
                    ours,
                    moved // 2,
                    copy_in_turn=written,
                    kernels=False,
                )


def _build(
    size: int, sides: list[list[int]], dtype: torch.dtype, memory_format: torch.memory_format
) -> dict[str, Callable[[], Tensor]]:
    generator = np.random.default_rng(1)
    images = [generator.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in sides]
    forms = {"numpy": _numpy, "torch": _torch, "opswap": _opswap}
    return {name: partial(form, images, size, dtype, memory_format) for name, form in forms.items()}


def _opswap(images: list[Array], size: int, dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    options: dict[str, Any] = {} if dtype is torch.uint8 else {"mean": _MEAN, "std": _STD, "dtype": dtype}
    return batch_images(images, size, memory_format=memory_format, **options).images


def _numpy(images: list[Array], size: int, dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    mean, std = np.float32(_MEAN), np.float32(_STD)
    batch = np.zeros((len(images), size, size, 3), np.uint8 if dtype is torch.uint8 else np.float32)
    for place, x in zip(batch, images, strict=True):
        if dtype is not torch.uint8:
            x = (x.astype(np.float32) * np.float32(_SCALE) - mean) / std
        place[: x.shape[0], : x.shape[1]] = x
    return torch.from_numpy(batch).permute(0, 3, 1, 2).to(dtype).contiguous(memory_format=memory_format)


def _torch(images: list[Array], size: int, dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (_MEAN, _STD))
    batch = torch.empty((len(images), 3, size, size), dtype=dtype, memory_format=memory_format).zero_()
    for place, array in zip(batch, images, strict=True):
        x = torch.from_numpy(array).permute(2, 0, 1)
        if dtype is not torch.uint8:
            x = x.float().mul_(_SCALE).sub_(mean).div_(std)
        place[:, : x.shape[1], : x.shape[2]] = x
    return batch
