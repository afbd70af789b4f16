# SPDX-License-Identifier: MIT
"""torch's own convolutions on tensors in channels_last: those with a 1 x 1 kernel, depthwise and dense ones."""

from __future__ import annotations

from torch import nn

from opswap import functional as F
from opswap._table import short_name
from opswap.nn.chain import apply_pointwise
from opswap.ops._convolution import BLOCK, strided_conv2d, taps_of
from opswap.ops.conv import conv_able, module_window, why_kept
from opswap.ops.depthwise import depthwise_able, depthwise_wins, is_depthwise, takes_window
from opswap.ops.pointwise import FEW_WEIGHTS, is_pointwise, module_overruns, pointwise_wins, takes_pixels
from opswap.ops.reduced_precision import depthwise_or_float32, float32_able

from ..rule import Replacement, Rule, named

__all__ = ["RULES", "WINDOWS", "large"]

_POINTWISE = Replacement(
    "(module_overruns(m0, x0) or float32_able(m0, x0) and is_pointwise(m0) or takes_pixels(m0, x0))",
    "apply_pointwise(m0, x0)",
    named(takes_pixels, module_overruns, float32_able, is_pointwise, apply_pointwise),
)
_MENDED = Replacement(
    "module_overruns(m0, x0)",
    "strided_conv2d(x0, m0.weight, m0.bias, m0.stride)",
    named(module_overruns, strided_conv2d),
)
_DEPTHWISE = Replacement(
    "(float32_able(m0, x0) and is_depthwise(m0) or depthwise_able(m0, x0))",
    "depthwise_conv2d(x0, m0.weight, m0.bias, m0.stride, m0.padding, m0.dilation)",
    named(float32_able, is_depthwise, depthwise_able) | {"depthwise_conv2d": depthwise_or_float32},
)
_DENSE = Replacement(
    "(float32_able(m0, x0) and m0.groups == 1 or conv_able(m0, x0))",
    "conv2d(x0, m0.weight, m0.bias, m0.stride, m0.padding, m0.dilation)",
    named(float32_able, conv_able, F.conv2d),
)


WINDOWS = "the kernels support 1, 3, 5, 7 and 9 taps per direction"


def large(size: int) -> str:
    """Why a 1x1 convolution with this number of weights is kept."""
    return f"a weight of {size:,} elements: torch is as fast from {FEW_WEIGHTS:,} on"


def _in_16_bits(module: nn.Module) -> str:
    """Why a convolution with a weight in 16 bits is kept, else ""; a condition that is never true costs time."""
    dtype = module.weight.dtype
    if dtype.itemsize != 2:
        return ""
    return f"a weight in {short_name(dtype)}: the kernels are for float32 and float64"


def _declines_pointwise(module: nn.Module) -> str | None:
    if taps_of(module) != (1, 1) or module.groups != 1 or not pointwise_wins():
        return None
    if not is_pointwise(module):
        return f"the kernels support no padding, not padding={module.padding}"
    size = module.weight.numel()
    return large(size) if size >= FEW_WEIGHTS else _in_16_bits(module)


def _declines_depthwise(module: nn.Module) -> str | None:
    if not 1 < module.groups == module.in_channels or taps_of(module) == (1, 1) or not depthwise_wins():
        return None
    if is_depthwise(module):
        return ""
    if not takes_window(taps_of(module), 1, 1):
        return f"a window of {taps_of(module)}: {WINDOWS}"
    if module.out_channels != module.in_channels:
        return f"{module.in_channels} channels in, {module.out_channels} out: the kernels support as many out as in"
    options = ("stride", "dilation", "padding", "padding_mode")
    given = ", ".join(f"{name}={getattr(module, name)!r}" for name in options)
    return f"the kernels support stride 2, or stride 1 with any dilation, and zero padding, not {given}"


def _declines_dense(module: nn.Module) -> str | None:
    if module.groups != 1:
        return None
    window = module_window(module)
    if window is None:
        return (
            "its padding is not zeros, or differs between both sides: the kernel supports equal zero padding"
        )
    why = why_kept(module.weight.shape, window)
    return _in_16_bits(module) if why == "" else why


def _declines_mended(module: nn.Conv2d) -> str | None:
    strided = is_pointwise(module) and max(module.stride) > 1
    return "" if strided and module.in_channels < BLOCK else None


RULES = (
    Rule(
        "pointwise_conv",
        False,
        modules=(nn.Conv2d,),
        whole=_POINTWISE,
        declines=_declines_pointwise,
        example=lambda: (nn.Conv2d(116, 116, 1, bias=False), ((16, 116, 14, 14),)),
    ),
    Rule(
        "depthwise_conv",
        False,
        modules=(nn.Conv2d,),
        whole=_DEPTHWISE,
        declines=_declines_depthwise,
        example=lambda: (nn.Conv2d(58, 58, 3, 1, 1, groups=58, bias=False), ((16, 58, 28, 28),)),
    ),
    Rule(
        "conv2d",
        False,
        modules=(nn.Conv2d,),
        whole=_DENSE,
        declines=_declines_dense,
        example=lambda: (nn.Conv2d(64, 64, 3, padding=1, bias=False), ((16, 64, 28, 28),)),
    ),
    # After the rules above, for what they do not replace, and with exact=True.
    Rule("strided_conv_gradient", True, modules=(nn.Conv2d,), whole=_MENDED, declines=_declines_mended),
)
