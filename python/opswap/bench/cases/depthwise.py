# SPDX-License-Identifier: MIT
"""Depthwise convolutions at the shapes of ShuffleNetV2 x1.0, ConvNeXt, EdgeNeXt, LR-ASPP, GhostNetV2 and InceptionNeXt,
against torch's own in channels_last; of contiguous images with a weight in channels_last at those of EfficientViM, and
of contiguous images with an ordinary weight, some of which are torch's in some directions.

A forward records its graph; a backward gives the gradients of input and weight, a "step" is both. A payload is half of
what a kernel must move: input and output forward; both, their gradients and no output backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as T

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import LAYOUTS, Case, shape_text

from .calls import DIRECTIONS, Step

__all__ = ["cases"]

# Channels, height and width, side or sides, stride, dilation.
_SHAPES: tuple[tuple[int, int, int | tuple[int, int], int, int], ...] = (
    (24, 56, 3, 2, 1),
    (58, 56, 3, 2, 1),
    (58, 28, 3, 1, 1),
    (116, 28, 3, 2, 1),
    (116, 14, 3, 1, 1),
    (232, 14, 3, 2, 1),
    (232, 7, 3, 1, 1),
    (96, 28, 5, 1, 1),
    (96, 56, 7, 1, 1),
    (192, 28, 7, 1, 1),
    (384, 14, 7, 1, 1),
    (768, 7, 7, 1, 1),
    (96, 28, 7, 2, 1),
    (160, 14, 9, 1, 1),
    (672, 14, 5, 1, 2),
    (96, 28, 3, 1, 2),
    (72, 28, (1, 5), 1, 1),
    (72, 28, (5, 1), 1, 1),
    (240, 14, (1, 5), 1, 1),
    (240, 14, (5, 1), 1, 1),
    (480, 7, (1, 5), 1, 1),
    (480, 7, (5, 1), 1, 1),
    (40, 56, (1, 9), 1, 1),
    (40, 56, (9, 1), 1, 1),
)
# In bfloat16 too: those of ShuffleNetV2, and windows of 5 x 5 and 7 x 7.
_IN_16_BITS = (*_SHAPES[:9], (96, 56, 5, 2, 1))
# Contiguous images, which both copy into channels_last.
_MIXED = ((147, 14, 3, 1, 1), (75, 7, 3, 1, 1))
# Contiguous images and weights, which opswap alone puts into channels_last: in float32 if their weight trains.
_PLANES = (
    (240, 28, 5, 1, 1),
    (672, 14, 5, 2, 1),
    (96, 56, 7, 1, 1),
    (384, 14, 7, 1, 1),
    (96, 28, 3, 1, 2),
    (72, 28, (1, 5), 1, 1),
)
_WIDE_AND_NARROW = ((58, 28, 3, 1, 1), (116, 28, 3, 2, 1), (96, 28, 5, 1, 1))
_DIRECTIONS = ("inference", "forward", "backward", "step")
# Of the largest value: sums of up to some 25,000 terms, those of 16 bits rounded once.
_TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-12, torch.bfloat16: 1e-2}


def cases(batch: int) -> Iterator[Case]:
    """Every shape in all directions."""
    shapes = [(s, ("NHWC", "NHWC"), torch.float32) for s in _SHAPES]
    shapes += [(s, ("NCHW", "NHWC"), torch.float32) for s in _MIXED]
    shapes += [(s, ("NHWC", "NHWC"), torch.bfloat16) for s in _IN_16_BITS]
    shapes += [(s, ("NCHW", "NCHW"), torch.float32) for s in _PLANES]
    shapes += [
        (s, ("NCHW", "NCHW"), dtype) for s in _WIDE_AND_NARROW for dtype in (torch.float64, torch.bfloat16)
    ]
    for (channels, size, sides, stride, dilation), layouts, dtype in shapes:
        shape = (batch, channels, size, size)
        taps = (sides, sides) if isinstance(sides, int) else sides
        side = sides if isinstance(sides, int) else "x".join(map(str, sides))
        text = f"{shape_text(shape)} k{side} s{stride}" + f" d{dilation}" * (dilation > 1)
        inputs, outputs = torch.Size(shape).numel(), batch * channels * (-(-size // stride)) ** 2
        moved = {"inference": inputs + outputs, "backward": 2 * inputs + outputs}
        moved |= {"forward": moved["inference"], "step": sum(moved.values())}
        left_to_torch = layouts == ("NCHW", "NCHW") and dtype is torch.float32
        for direction in _DIRECTIONS[1:] if left_to_torch else _DIRECTIONS:  # without a graph
            build = partial(_build, shape, taps, stride, dilation, layouts, dtype, direction)
            payload = moved[direction] * dtype.itemsize // 2
            yield Case(
                "depthwise_conv2d",
                text,
                short_name(dtype),
                direction,
                build,
                {"opswap": layouts[0]},
                payload,
                _TOLERANCES[dtype],
            )


def _build(
    shape: tuple[int, ...],
    taps: tuple[int, int],
    stride: int,
    dilation: int,
    layouts: tuple[str, str],
    dtype: torch.dtype,
    direction: str,
) -> dict[str, Step]:
    x = torch.randn(shape).to(dtype).contiguous(memory_format=LAYOUTS[layouts[0]]).requires_grad_()
    weight = torch.randn(shape[1], 1, *taps).to(dtype).to(memory_format=LAYOUTS[layouts[1]])
    leaves = (x, weight.requires_grad_())
    window = (None, stride, tuple(k // 2 * dilation for k in taps), dilation)
    forms = {
        "torch": lambda: T.conv2d(*leaves, *window, shape[1]),
        "opswap": lambda: F.depthwise_conv2d(*leaves, *window),
    }
    gradient = torch.randn_like(forms["torch"]())
    return {name: DIRECTIONS[direction](form, leaves, gradient) for name, form in forms.items()}
