# SPDX-License-Identifier: MIT
"""torch's convolutions with a 1 x 1 kernel, on tensors in channels_last."""

from __future__ import annotations

from torch import nn

from opswap import functional as F
from opswap.ops.pointwise import is_pointwise, pointwise_wins, takes_pixels

from .rule import Replacement, Rule

__all__ = ["RULES"]

_POINTWISE = Replacement(
    "takes_pixels(m0, x0)",
    "pointwise_conv2d(x0, m0.weight, m0.bias)",
    {"takes_pixels": takes_pixels, "pointwise_conv2d": F.pointwise_conv2d},
)


def _takes(module: nn.Module) -> bool:
    return is_pointwise(module) and pointwise_wins()


def _example() -> tuple[nn.Module, tuple[tuple[int, ...], ...]]:
    return nn.Conv2d(116, 116, 1, bias=False), ((16, 116, 14, 14),)


RULES = (
    Rule("pointwise_conv", False, modules=(nn.Conv2d,), whole=_POINTWISE, takes=_takes, example=_example),
)
