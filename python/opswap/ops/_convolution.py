# SPDX-License-Identifier: MIT
"""What the convolutions share: their options in numbers, and the gradients as torch computes them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn

from opswap._torch import functorch_active

from ._function import records_graphs
from ._layout import is_strided, suggest_memory_format

__all__ = [
    "BLOCK",
    "HALVES",
    "Pair",
    "gives_channels_last",
    "gradient_overruns",
    "is_one",
    "library_backward",
    "padding_numbers",
    "pair",
    "strided_conv2d",
    "taps_of",
]

Pair = int | Sequence[int]

BLOCK = 16  # channels of a block of the convolution library with AVX-512; 8 with AVX2
HALVES = (torch.bfloat16, torch.float16)


def taps_of(module: nn.Conv2d) -> tuple[int, ...]:
    """(kH, kW) of the weight that a convolution has now, which torch reads, unlike `kernel_size`; () without one."""
    weight = module._parameters.get("weight")
    if weight is None:  # parametrized, or deleted
        weight = getattr(module, "weight", None)
    return tuple(weight.shape[2:]) if isinstance(weight, Tensor) else ()


def pair(value: Pair) -> list[int]:
    """An option of two directions as a list; one number, of NumPy too, is for both."""
    if isinstance(value, int):
        return [value, value]
    return list(value) if isinstance(value, (tuple, list)) else [operator.index(value)] * 2


def is_one(option: Any) -> bool:
    """True for a stride or dilation of one in both directions; a number of NumPy compares with tuples as an array."""
    return isinstance(option, (int, tuple, list)) and option in (1, (1, 1), [1, 1])


def padding_numbers(
    padding: Pair | str, taps: Sequence[int], stride: Pair, dilation: Pair
) -> list[int] | None:
    """The padding in numbers; None if "same" is another one at either side, or an error.

    taps: of the window, (kH, kW).
    """
    if padding == "valid":
        return [0, 0]
    if not isinstance(padding, str):
        return pair(padding)
    steps = [dilation] * 2 if isinstance(dilation, int) else dilation
    if padding != "same" or pair(stride) != [1, 1] or not isinstance(steps, (tuple, list)) or len(steps) != 2:
        return None  # the last two: what torch refuses, or one number for both, which is rare
    total = [d * (k - 1) for d, k in zip(steps, taps, strict=True)]
    return None if any(t % 2 for t in total) else [t // 2 for t in total]


def _overruns(input: Any, weight: Any, stride: Any) -> bool:
    """True if torch's gradient of the weight of this convolution may write beyond its buffer.

    The process ends then, or other tensors change. Seen with torch 2.13 on CPUs with AVX2 or AVX-512 for float32 in
    channels_last, a 1 x 1 kernel with a stride, no padding, one group, and fewer channels of input than a block of the
    convolution library has.

    Args: input, weight, stride: of such a convolution without padding and with one group, or anything.
    """
    if not isinstance(input, Tensor) or not isinstance(weight, Tensor) or not _picks(stride):
        return False
    if (
        not is_strided(input)
        or not is_strided(weight)
        or not input.is_cpu
        or input.dtype is not torch.float32
    ):
        return False
    if input.dim() not in (3, 4) or weight.dim() != 4 or weight.shape[2] != 1 or weight.shape[3] != 1:
        return False
    if not input.shape[-3] == weight.shape[1] < BLOCK:
        return False
    batch = input.unsqueeze(0) if input.dim() == 3 else input
    return gives_channels_last(batch, weight)


def gives_channels_last(input: Tensor, weight: Tensor) -> bool:
    """True if torch's convolution of these 4-D tensors gives its output in channels_last: one of both suggests it."""
    return any(suggest_memory_format(t) is torch.channels_last for t in (input, weight))


def _picks(stride: Any) -> bool:
    """True for one or two positive numbers of which one is not 1."""
    steps = (stride,) if isinstance(stride, int) else stride if isinstance(stride, (tuple, list)) else ()
    return len(steps) in (1, 2) and all(type(s) is int and s > 0 for s in steps) and max(steps) > 1


def _picked(input: Tensor, stride: Pair) -> Tensor:
    """The pixels that a 1 x 1 kernel reads."""
    rows, columns = (pair(stride) * 2)[:2]
    picked = input[:, :, ::rows, ::columns]
    # torch.vmap, which hides a dimension, cannot make it so.
    return picked if functorch_active() else picked.contiguous(memory_format=torch.channels_last)


def gradient_overruns(input: Any, weight: Any, bias: Any, stride: Any) -> bool:
    """`_overruns`, for a call that will ask for the gradient of weight or bias, which torch computes together."""
    if not records_graphs() or not _overruns(input, weight, stride):
        return False
    return weight.requires_grad or (isinstance(bias, Tensor) and bias.requires_grad)


def strided_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair) -> Tensor:
    """torch's convolution without padding and with one group. Where its gradient overruns, pixels are picked first.

    The output has the bits of torch's with AVX2 and AVX-512.
    """
    if gradient_overruns(input, weight, bias, stride):
        if input.dim() == 3:
            return strided_conv2d(input.unsqueeze(0), weight, bias, stride).squeeze(0)
        return torch_functional.conv2d(_picked(input, stride), weight, bias)
    return torch_functional.conv2d(input, weight, bias, stride)


def library_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
    dilation: Sequence[int] = (1, 1),
) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias that mask selects, differentiable and seen by every transform."""
    of_input, of_weight, of_bias = mask
    if (of_weight or of_bias) and groups == 1 and not any(padding) and _overruns(input, weight, stride):
        window, others = (stride, padding, groups), (of_input, False, False)
        first = library_backward(grad_output, input, weight, *window, others, dilation)[0]
        picked, others = _picked(input, stride), (False, of_weight, of_bias)
        return first, *library_backward(grad_output, picked, weight, (1, 1), padding, 1, others)[1:]
    options = (list(stride), list(padding), list(dilation), False, [0, 0], groups)
    return torch.ops.aten.convolution_backward(
        grad_output, input, weight, [weight.shape[0]], *options, list(mask)
    )
