# SPDX-License-Identifier: MIT
"""Dense convolutions of LPRNet, ShuffleNetV2's stem and ResNet's strides, against torch's own in channels_last.

A backward gives the gradients of input, weight and bias, without that of an image; a "step" is forward and backward.
These are `conv2d`, which leaves a direction to torch if that is faster on the tier in use; 1x1 with small weights run
as `pointwise_conv2d`. "forward kernel" and "data kernel" are the kernels themselves, whoever computes that direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import _core
from opswap import functional as F
from opswap.bench.case import Case, shape_text
from opswap.ops._convolution import library_backward

from .calls import DIRECTIONS, Step

__all__ = ["cases"]

# Channels, height, width of the input; outputs, window, stride, padding.
_SHAPES = (
    (3, 24, 94, 64, (3, 3), 1, (0, 0)),
    (64, 20, 90, 32, (1, 1), 1, (0, 0)),
    (32, 20, 90, 32, (3, 1), 1, (1, 0)),
    (32, 20, 90, 32, (1, 3), 1, (0, 1)),
    (32, 20, 90, 128, (1, 1), 1, (0, 0)),
    (64, 18, 44, 64, (1, 1), 1, (0, 0)),
    (64, 18, 44, 64, (3, 1), 1, (1, 0)),
    (64, 18, 44, 64, (1, 3), 1, (0, 1)),
    (64, 18, 44, 256, (1, 1), 1, (0, 0)),
    (256, 18, 44, 64, (1, 1), 1, (0, 0)),
    (64, 16, 21, 256, (1, 4), 1, (0, 0)),
    (256, 16, 18, 68, (13, 1), 1, (0, 0)),
    (3, 224, 224, 24, (3, 3), 2, (1, 1)),
    (64, 28, 28, 128, (3, 3), 2, (1, 1)),
    (256, 14, 14, 512, (3, 3), 2, (1, 1)),
)
_IMAGE_CHANNELS = 3
# Of the largest value: gradients are sums of up to 100,000 terms for each image of a batch.
_TOLERANCE = 1e-3


def cases(batch: int) -> Iterator[Case]:
    """Every shape in float32."""
    for channels, height, width, outputs, taps, stride, padding in _SHAPES:
        shape = (batch, channels, height, width)
        text = f"{shape_text(shape)} -> {outputs} k{taps[0]}x{taps[1]} s{stride}"
        for direction in ("backward", "step"):
            build = partial(_build, shape, (outputs, channels, *taps), stride, padding, direction)
            yield Case("conv2d", text, "float32", direction, build, {"opswap": "NHWC"}, tolerance=_TOLERANCE)
        for direction in ("forward kernel", "data kernel"):
            if taps == (1, 1) or (direction == "data kernel" and channels == _IMAGE_CHANNELS):
                continue
            build = partial(_build_kernel, shape, (outputs, channels, *taps), stride, padding, direction)
            yield Case(
                "conv2d",
                text,
                "float32",
                direction,
                build,
                {"opswap": "NHWC"},
                tolerance=_TOLERANCE,
                kernels=False,  # called past what counts them
            )


def _tensors(shape: tuple[int, ...], weight: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    last = torch.channels_last
    scale = torch.Size(weight[1:]).numel() ** 0.5
    return torch.randn(shape).contiguous(memory_format=last), (torch.randn(weight) / scale).contiguous(
        memory_format=last
    )


def _build(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int,
    padding: tuple[int, int],
    direction: str,
) -> dict[str, Step]:
    x, w = _tensors(shape, weight)
    bias = torch.randn(weight[0])
    leaves = [t.requires_grad_() for t in ([w, bias] if shape[1] == _IMAGE_CHANNELS else [x, w, bias])]
    forms = {
        "torch": lambda: T.conv2d(x, w, bias, stride, padding),
        "opswap": lambda: F.conv2d(x, w, bias, stride, padding),
    }
    gradient = torch.randn_like(forms["torch"]())
    return {name: DIRECTIONS[direction](form, leaves, gradient) for name, form in forms.items()}


def _build_kernel(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    stride: int,
    padding: tuple[int, int],
    direction: str,
) -> dict[str, Step]:
    x, w = _tensors(shape, weight)
    if direction == "forward kernel":
        return {
            "torch": lambda: (T.conv2d(x, w, None, stride, padding),),
            "opswap": lambda: (_core.plain_conv(x, w, None, stride, padding, 1),),
        }
    gradient = torch.randn_like(T.conv2d(x, w, None, stride, padding))
    window, mask = ([stride] * 2, list(padding), [1, 1]), (True, False, False)
    return {
        "torch": lambda: library_backward(gradient, x, w, *window[:2], 1, mask)[:1],
        "opswap": lambda: _core.plain_conv_backward(gradient, x, w, *window, *mask)[:1],
    }
