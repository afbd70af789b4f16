# SPDX-License-Identifier: MIT
"""1 x 1 convolutions at the shapes of ShuffleNetV2, LPRNet, ResNet and MobileViTV2, against torch's convolution."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as T

from opswap import functional as F
from opswap.bench.case import LAYOUTS, Case, shape_text
from opswap.ops.pointwise import FEW_WEIGHTS

from .calls import DIRECTIONS, Step

__all__ = ["cases"]

# Channels, height, width, outputs; the shortcuts of ResNet, MobileOne and RegNet have a stride of 2.
_SHAPES = (
    (24, 56, 56, 58),
    (24, 28, 28, 24),
    (48, 14, 14, 48),
    (58, 28, 28, 58),
    (96, 7, 7, 96),
    (116, 28, 28, 116),
    (116, 14, 14, 116),
    (232, 14, 14, 232),
    (232, 7, 7, 232),
    (464, 7, 7, 1024),
    (64, 20, 90, 32),
    (256, 16, 16, 128),
)
_STRIDED = (
    (64, 56, 56, 128),
    (128, 28, 28, 256),
    (48, 56, 56, 96),
    (24, 112, 112, 56),
    (152, 28, 28, 368),
)
# Contiguous, without a stride; the last two of MobileViTV2, whose patches are contiguous in every model.
_PLANES = (
    *(shape for shape in _SHAPES if shape[0] * shape[3] < FEW_WEIGHTS),
    (64, 56, 56, 64),
    (96, 4, 144, 193),
    (128, 4, 36, 256),
)
_DIRECTIONS = ("inference", "forward", "backward", "step")


def cases(batch: int) -> Iterator[Case]:
    """Every shape in every direction; convolutions of ShuffleNetV2 have no bias."""
    shapes = [(s, 1, "NHWC") for s in _SHAPES] + [(s, 2, "NHWC") for s in _STRIDED]
    shapes += [(s, 1, "NCHW") for s in _PLANES]
    for (channels, height, width, outputs), stride, layout in shapes:
        shape = (batch, channels, height, width)
        suffix = f" stride {stride}" if stride > 1 else ""
        for direction in _DIRECTIONS:
            yield Case(
                "pointwise_conv2d",
                f"{shape_text(shape)} -> {outputs}{suffix}",
                "float32",
                direction,
                partial(_build, shape, outputs, stride, layout, direction),
                {"opswap": layout},
                tolerance=1e-4,
            )


def _build(shape: tuple[int, ...], outputs: int, stride: int, layout: str, direction: str) -> dict[str, Step]:
    memory_format = LAYOUTS[layout]
    x = torch.randn(shape).contiguous(memory_format=memory_format).requires_grad_()
    weight = torch.randn(outputs, shape[1], 1, 1) / shape[1] ** 0.5
    weight = weight.contiguous(memory_format=memory_format).requires_grad_()
    size = [(side - 1) // stride + 1 for side in shape[2:]]
    grad = torch.randn(shape[0], outputs, *size).contiguous(memory_format=memory_format)
    forms = {
        "torch": partial(T.conv2d, x, weight, stride=stride),
        "opswap": partial(F.pointwise_conv2d, x, weight, stride=stride),
    }
    return {name: DIRECTIONS[direction](form, (x, weight), grad) for name, form in forms.items()}
