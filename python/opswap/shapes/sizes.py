# SPDX-License-Identifier: MIT
"""Which image sizes a loader yields, and which batch sizes would hold them with little padding."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .images import PaddedImages

__all__ = ["Buckets", "SizeHistogram", "histogram"]

_DISTINCT = 256  # sizes that are distinguished when buckets are chosen; more are rounded up to coarser steps


@dataclass(frozen=True)
class Buckets:
    """Batch sizes and their cost: `padding` is the share of all pixels in the batches that are padding."""

    sizes: tuple[tuple[int, int], ...]
    padding: float

    def __str__(self) -> str:
        return f"{', '.join(f'{h} x {w}' for h, w in self.sizes)}: {self.padding:.1%} padding"


@dataclass(frozen=True)
class SizeHistogram:
    """Sizes of images as a loader yields them.

    sizes: how many images have each (height, width). shapes: how many batches have each shape, if the loader yields
    batches that are tensors. batches: how many were read.
    """

    sizes: Counter[tuple[int, int]]
    shapes: Counter[tuple[int, ...]]
    batches: int

    def suggest(self, count: int = 1, *, divisor: int = 1) -> Buckets:
        """The best `count` batch sizes for these images, each image in the smallest that holds it.

        Args: count: buckets at most. divisor: height and width of a bucket are multiples of it.
        Raises: ValueError if there are no images, or an argument is not positive.
        """
        if count < 1 or divisor < 1:
            raise ValueError(f"suggest: count and divisor must be positive, got {count} and {divisor}")
        if not self.sizes:
            raise ValueError("suggest: the loader yielded no images")
        step = divisor
        rounded = _rounded(self.sizes, step)
        while len(rounded) > _DISTINCT:
            step *= 2
            rounded = _rounded(self.sizes, step)
        chosen = _partition(
            sorted(rounded.items(), key=lambda item: (item[0][0] * item[0][1], item[0])), count
        )
        return Buckets(chosen, self.padding(chosen))

    def padding(self, buckets: Iterable[tuple[int, int]]) -> float:
        """The share of padding in batches of these sizes, each image in the smallest that holds it.

        Raises: ValueError for an image that no bucket holds.
        """
        ordered = sorted(buckets, key=lambda b: b[0] * b[1])
        pixels = taken = 0
        for (h, w), n in self.sizes.items():
            bucket = next((b for b in ordered if b[0] >= h and b[1] >= w), None)
            if bucket is None:
                raise ValueError(f"padding: none of the buckets {ordered} holds an image of {h} x {w}")
            pixels += n * h * w
            taken += n * bucket[0] * bucket[1]
        return 1 - pixels / taken if taken else 0.0

    def __str__(self) -> str:
        total = sum(self.sizes.values())
        lines = [f"{total} images of {len(self.sizes)} sizes in {self.batches} batches"]
        lines += [f"  {n:6d}  {h} x {w}" for (h, w), n in self.sizes.most_common(10)]
        if len(self.sizes) > 10:
            lines.append(f"  {total - sum(n for _, n in self.sizes.most_common(10)):6d}  of other sizes")
        if self.sizes:
            lines += [f"  {n} batch size{'s' * (n > 1)}: {self.suggest(n, divisor=32)}" for n in (1, 2, 4)]
        return "\n".join(lines)


def histogram(loader: Iterable[Any], batches: int | None = None) -> SizeHistogram:
    """Count the sizes of the images that a DataLoader, or any iterable of batches, yields.

    A batch is a tensor (N, C, H, W), a list of tensors (C, h, w), or a tuple, list or dict that holds one of these
    first; or a list of samples, which are tuples or dicts with one image each. A sample (C, h, w), alone or first in a
    tuple, counts as one image. opswap's PaddedImages count with the sizes of their content.

    Args: batches: how many to read; None is all of them.
    Raises: TypeError for a batch in which no images are found, and a loader that yields none; ValueError for fewer
        than 0 batches.
    """
    try:
        iterator = iter(loader)
    except TypeError:
        raise TypeError(f"histogram: expected a DataLoader or batches, got {type(loader).__name__}") from None
    if batches is not None and batches < 0:
        raise ValueError(f"histogram: batches must not be negative, got {batches}")
    sizes: Counter[tuple[int, int]] = Counter()
    shapes: Counter[tuple[int, ...]] = Counter()
    number = 0
    for batch in itertools.islice(iterator, batches):
        number += 1
        found = _images(batch)
        if found is None:
            raise TypeError(
                f"histogram: batch {number} is a {_describe(batch)}, in which no images are found"
            )
        tensor = found.images if isinstance(found, PaddedImages) else found
        if isinstance(tensor, Tensor) and tensor.dim() == 4:
            shapes[tuple(tensor.shape)] += 1
        sizes.update(_sizes(found))
    return SizeHistogram(sizes, shapes, number)


def _images(batch: Any) -> Tensor | PaddedImages | Sequence[Tensor] | None:
    if isinstance(batch, PaddedImages):
        return batch
    if isinstance(batch, Tensor):
        return batch if batch.dim() in (3, 4) else None
    if isinstance(batch, dict):
        return next((found for v in batch.values() if (found := _images(v)) is not None), None)
    if isinstance(batch, (list, tuple)) and len(batch):
        if _are_images(batch):
            return batch
        samples = [_image_of(sample) for sample in batch] if isinstance(batch, list) else [None]
        images = [image for image in samples if image is not None]
        whole = len(images) == len(samples) and not _are_images(batch[0])
        return images if whole else _images(batch[0])
    return None


def _are_images(values: Any) -> bool:
    """True for tensors (C, h, w) of one C: an image and its mask differ."""
    if not isinstance(values, (list, tuple)) or not all(
        isinstance(x, Tensor) and x.dim() == 3 for x in values
    ):
        return False
    return len({x.shape[0] for x in values}) == 1


def _image_of(sample: Any) -> Tensor | None:
    """The image (C, h, w) of a sample: first in a tuple or list, or the first in a dict."""
    if isinstance(sample, dict):
        return next((v for v in sample.values() if isinstance(v, Tensor) and v.dim() == 3), None)
    first = sample[0] if isinstance(sample, (tuple, list)) and len(sample) else None
    return first if isinstance(first, Tensor) and first.dim() == 3 else None


def _sizes(found: Tensor | PaddedImages | Sequence[Tensor]) -> list[tuple[int, int]]:
    if isinstance(found, PaddedImages):
        return list(found.sizes)
    if isinstance(found, Tensor):
        return [(int(found.shape[-2]), int(found.shape[-1]))] * (len(found) if found.dim() == 4 else 1)
    return [(int(x.shape[-2]), int(x.shape[-1])) for x in found]


def _describe(batch: Any) -> str:
    if isinstance(batch, Tensor):
        return f"tensor of shape {tuple(batch.shape)}"
    return type(batch).__name__


def _rounded(sizes: Counter[tuple[int, int]], step: int) -> Counter[tuple[int, int]]:
    rounded: Counter[tuple[int, int]] = Counter()
    for (h, w), n in sizes.items():
        rounded[(-(-h // step) * step, -(-w // step) * step)] += n
    return rounded


def _partition(ordered: list[tuple[tuple[int, int], int]], count: int) -> tuple[tuple[int, int], ...]:
    """Cut sizes, ordered by area, into runs, so that the runs' hulls have the fewest pixels: dynamic programming."""
    total = len(ordered)
    heights = torch.tensor([s[0] for s, _ in ordered])
    widths = torch.tensor([s[1] for s, _ in ordered])
    before = [0, *itertools.accumulate(n for _, n in ordered)]
    # best[i]: (pixels, cuts) of the first i sizes with the buckets so far.
    best: list[tuple[int, tuple[int, ...]] | None] = [(0, ()), *[None] * total]
    answers = []
    for _ in range(min(count, total)):
        following: list[tuple[int, tuple[int, ...]] | None] = [None] * (total + 1)
        for end in range(1, total + 1):
            tall = heights[:end].flip(0).cummax(0).values.flip(0).tolist()
            wide = widths[:end].flip(0).cummax(0).values.flip(0).tolist()
            for start in range(end):
                known = best[start]
                if known is None:
                    continue
                pixels = known[0] + (before[end] - before[start]) * tall[start] * wide[start]
                shortest = following[end]
                if shortest is None or pixels < shortest[0]:
                    following[end] = (pixels, (*known[1], end))
        best = following
        answers.append(best[total])
    _, cuts = min(a for a in answers if a is not None)
    hulls = []
    for start, end in zip((0, *cuts), cuts, strict=False):
        hulls.append((int(heights[start:end].max()), int(widths[start:end].max())))
    return tuple(dict.fromkeys(hulls))
