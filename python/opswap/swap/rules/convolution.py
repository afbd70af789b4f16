# SPDX-License-Identifier: MIT
"""torch's own convolutions on tensors in channels_last: those with a 1 x 1 kernel, and depthwise ones."""

from __future__ import annotations

from torch import nn

from opswap import functional as F
from opswap.ops.depthwise import depthwise_able, depthwise_wins, is_depthwise
from opswap.ops.pointwise import is_pointwise, pointwise_wins, takes_pixels

from ..rule import Replacement, Rule

__all__ = ["RULES"]

_POINTWISE = Replacement(
    "takes_pixels(m0, x0)",
    "pointwise_conv2d(x0, m0.weight, m0.bias)",
    {"takes_pixels": takes_pixels, "pointwise_conv2d": F.pointwise_conv2d},
)
_DEPTHWISE = Replacement(
    "depthwise_able(m0, x0)",
    "depthwise_conv2d(x0, m0.weight, m0.bias, m0.stride, m0.padding)",
    {"depthwise_able": depthwise_able, "depthwise_conv2d": F.depthwise_conv2d},
)


# Elements of a weight from which on the convolution library is as fast or faster: it has little left to pad there.
_LARGE = 1 << 17


def _takes_pointwise(module: nn.Module) -> bool:
    return is_pointwise(module) and pointwise_wins() and module.weight.numel() < _LARGE


def _takes_depthwise(module: nn.Module) -> bool:
    return is_depthwise(module) and depthwise_wins()


def _pointwise_example() -> tuple[nn.Module, tuple[tuple[int, ...], ...]]:
    return nn.Conv2d(116, 116, 1, bias=False), ((16, 116, 14, 14),)


def _depthwise_example() -> tuple[nn.Module, tuple[tuple[int, ...], ...]]:
    return nn.Conv2d(58, 58, 3, 1, 1, groups=58, bias=False), ((16, 58, 28, 28),)


RULES = (
    Rule(
        "pointwise_conv",
        False,
        modules=(nn.Conv2d,),
        whole=_POINTWISE,
        takes=_takes_pointwise,
        example=_pointwise_example,
    ),
    Rule(
        "depthwise_conv",
        False,
        modules=(nn.Conv2d,),
        whole=_DEPTHWISE,
        takes=_takes_depthwise,
        example=_depthwise_example,
    ),
)
