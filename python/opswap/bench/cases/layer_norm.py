# SPDX-License-Identifier: MIT
"""LayerNorm over the channels of images in channels_last, at shapes of ConvNeXt-atto and -tiny (images of 96 and 224).

Stock is torch's function on the permuted view, as timm and torchvision have it, or the arithmetic of the ConvNeXt
paper's code. A backward gives the gradients of input, weight and bias; a "step" is forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import Case, shape_text

from .calls import DIRECTIONS, Step

__all__ = ["cases"]

# Images of a batch of 32, channels, height and width.
_SIZES = (
    (8, 40, 24, 24),
    (32, 160, 6, 6),
    (32, 320, 3, 3),
    (8, 96, 56, 56),
    (8, 192, 28, 28),
    (8, 384, 14, 14),
    (8, 768, 7, 7),
)
_DIRECTIONS = ("forward", "backward", "step")
_EPS = 1e-6
# Relative to the largest value: torch sums gradients of weight and bias in bfloat16, and is off by 0.28 for 25,088
# pixels, where opswap is off by 0.003.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-1}


def cases(batch: int) -> Iterator[Case]:
    """Both spellings, in float32 and bfloat16."""
    for name, stock in (("layer_norm2d", _permuted), ("layer_norm2d arithmetic", _arithmetic)):
        for images, *image in _SIZES:
            size = (max(1, images * batch // 32), *image)
            for dtype, tolerance in _TOLERANCE.items():
                for direction in _DIRECTIONS:
                    build = partial(_build, stock, size, dtype, direction)
                    yield Case(
                        name,
                        shape_text(size),
                        short_name(dtype),
                        direction,
                        build,
                        {"opswap": "NHWC"},
                        0,
                        tolerance,
                        direction == "forward",
                    )


def _permuted(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return T.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), weight, bias, _EPS).permute(0, 3, 1, 2)


def _arithmetic(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    x = (x - mean) / torch.sqrt(variance + _EPS)
    return weight[:, None, None] * x + bias[:, None, None]


def _build(
    stock: Callable[..., Tensor], size: tuple[int, ...], dtype: torch.dtype, direction: str
) -> dict[str, Step]:
    x = torch.randn(size).to(dtype).contiguous(memory_format=torch.channels_last)
    weight, bias = (torch.rand(size[1]).add(0.5).to(dtype) for _ in range(2))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    gradient = torch.randn(size).to(dtype).contiguous(memory_format=torch.channels_last)
    forms = {"torch": partial(stock, *leaves), "opswap": partial(F.layer_norm2d, *leaves, _EPS)}
    return {key: DIRECTIONS[direction](form, leaves, gradient) for key, form in forms.items()}
