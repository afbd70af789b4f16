# SPDX-License-Identifier: MIT
"""torch.nn.functional.conv2d, as layers of the user's own call it: convolutions derived from torch's, with padding as
in TensorFlow, or with standardised weights.

What the weight is is known from the module, or from a run with example inputs if the forward computes it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch.fx import Node

from opswap import functional as F
from opswap.ops._convolution import BLOCK, gradient_overruns, strided_conv2d
from opswap.ops.conv import conv_pays, why_kept
from opswap.ops.depthwise import depthwise_fits, depthwise_wins, takes_window
from opswap.ops.pointwise import FEW_WEIGHTS, pointwise_fits, pointwise_wins

from ..rule import Refusal, Region, Replacement, Rule, Shapes, bound_arguments, calls_of, named
from .convolution import WINDOWS, large

__all__ = ["RULES"]

_find = partial(calls_of, (torch_functional.conv2d, torch.conv2d))


def _signature(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> None:
    """The arguments of torch's function."""


def _pair(value: Any) -> tuple[int, int]:
    """An option of two directions; refuses an option that is not a number."""
    pair = (
        (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else ()
    )
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or not all(type(v) is int for v in pair):
        raise Refusal("its options are not replaced", report=False)
    return pair


def _padding(
    value: Any, size: tuple[int, ...], stride: tuple[int, int], dilation: tuple[int, int] = (1, 1)
) -> tuple[int, int]:
    """Zeros before each direction; as many follow it, for windows of odd sides."""
    if value == "same" and stride == (1, 1) and size[2] % 2 == size[3] % 2 == 1:
        return dilation[0] * (size[2] // 2), dilation[1] * (size[3] // 2)
    return (0, 0) if value == "valid" else _pair(value)


def _written(value: Any, padding: tuple[int, int]) -> str:
    """The padding in the new forward: in words if it was, since a weight of another size gets another padding then."""
    return repr(value if isinstance(value, str) else padding)


def _size(weight: Any, shapes: Shapes) -> tuple[int, ...]:
    """The size of the weight; refuses an unknown one."""
    if isinstance(weight, Node):
        value = weight.meta.get("value")
        size = tuple(value.shape) if isinstance(value, torch.Tensor) else shapes.get(weight, ())
        if len(size) == 4:
            return tuple(size)
    raise Refusal("the size of its weight is not known", report=False)


def _read(region: Region) -> tuple[dict[str, Any], dict[str, str]]:
    """The arguments of the call, and the tensors among them as Python text."""
    given = bound_arguments(region.main, _signature)
    tensors = {k: region.names.get(given[k], "None") for k in ("input", "weight", "bias")}
    if not isinstance(given["input"], Node) or type(given["groups"]) is not int:
        raise Refusal("its options are not replaced", report=False)
    if given["bias"] is not None and not isinstance(given["bias"], Node):
        raise Refusal("its options are not replaced", report=False)
    return given, tensors


def _prove_pointwise(region: Region, shapes: Shapes) -> Replacement:
    given, tensors = _read(region)
    size = _size(given["weight"], shapes)
    if size[2:] != (1, 1) or given["groups"] != 1 or not pointwise_wins():
        raise Refusal("not a convolution of 1 x 1", report=False)
    stride = _pair(given["stride"])
    padding = _padding(given["padding"], size, stride)
    if padding != (0, 0):
        raise Refusal(f"the kernels support no padding, not padding={padding}")
    if size[0] * size[1] >= FEW_WEIGHTS:
        raise Refusal(large(size[0] * size[1]))
    input, weight, bias = tensors.values()
    return Replacement(
        f"(gradient_overruns({input}, {weight}, {bias}, {stride}) or pointwise_fits({input}, {weight}, {stride}))",
        f"pointwise_conv2d({input}, {weight}, {bias}, {stride})",
        named(pointwise_fits, gradient_overruns, F.pointwise_conv2d),
    )


def _prove_mended(region: Region, shapes: Shapes) -> Replacement:
    given, tensors = _read(region)
    size, stride = _size(given["weight"], shapes), _pair(given["stride"])
    padded = _padding(given["padding"], size, stride) != (0, 0)
    if size[1] >= BLOCK or size[2:] != (1, 1) or max(stride) == 1 or padded or given["groups"] != 1:
        raise Refusal("torch's gradient is right", report=False)
    input, weight, bias = tensors.values()
    return Replacement(
        f"gradient_overruns({input}, {weight}, {bias}, {stride})",
        f"strided_conv2d({input}, {weight}, {bias}, {stride})",
        named(gradient_overruns, strided_conv2d),
    )


def _prove_depthwise(region: Region, shapes: Shapes) -> Replacement:
    given, tensors = _read(region)
    size, groups = _size(given["weight"], shapes), given["groups"]
    if not 1 < groups == size[0] or size[1] != 1 or max(size[2:]) == 1 or not depthwise_wins():
        raise Refusal("not a depthwise convolution", report=False)
    stride, dilation = _pair(given["stride"]), _pair(given["dilation"])
    if not takes_window(size[2:], 1, 1):
        raise Refusal(f"a window of {size[2:]}: {WINDOWS}")
    if not takes_window(size[2:], stride, dilation):
        raise Refusal(
            f"the kernels support stride 2, or stride 1 with any dilation, not {stride=}, {dilation=}"
        )
    padding = _padding(given["padding"], size, stride, dilation)
    options = f"{', '.join(tensors.values())}, {stride}, {_written(given['padding'], padding)}, {dilation}"
    return Replacement(
        f"depthwise_fits({options}, {groups})",
        f"depthwise_conv2d({options})",
        named(depthwise_fits, F.depthwise_conv2d),
    )


def _prove_dense(region: Region, shapes: Shapes) -> Replacement:
    given, tensors = _read(region)
    if given["groups"] != 1:
        raise Refusal("it has several groups", report=False)
    size = _size(given["weight"], shapes)
    stride, dilation = _pair(given["stride"]), _pair(given["dilation"])
    padding = _padding(given["padding"], size, stride, dilation)
    reason = why_kept(size, (list(stride), list(padding), list(dilation)))
    if reason != "":
        raise Refusal(reason or "no kernel supports it", report=reason is not None)
    input, weight, bias = tensors.values()
    options = f"{stride}, {_written(given['padding'], padding)}, {dilation}"
    return Replacement(
        f"conv_pays({input}, {weight}, {options})",
        f"conv2d({input}, {weight}, {bias}, {options})",
        named(conv_pays, F.conv2d),
    )


RULES = (
    Rule("pointwise_conv", False, _find, _prove_pointwise),
    Rule("depthwise_conv", False, _find, _prove_depthwise),
    Rule("conv2d", False, _find, _prove_dense),
    # After the rules above, for what they do not replace, and with exact=True.
    Rule("strided_conv_gradient", True, _find, _prove_mended),
)
