# SPDX-License-Identifier: MIT
"""What the convolutions share: their options in numbers, and the gradients as torch computes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Pair", "library_backward", "padding_numbers", "pair"]

Pair = int | Sequence[int]


def pair(value: Pair) -> list[int]:
    """An option of two directions as a list."""
    return [value, value] if isinstance(value, int) else list(value)


def padding_numbers(
    padding: Pair | str, taps: Sequence[int], stride: Pair, dilation: Pair
) -> list[int] | None:
    """The padding in numbers; None if "same" is another one at either side, or an error.

    taps: of the window, (kH, kW).
    """
    if padding == "valid":
        return [0, 0]
    if isinstance(padding, str) and (padding != "same" or pair(stride) != [1, 1]):
        return None
    if not isinstance(padding, str):
        return pair(padding)
    total = [d * (k - 1) for d, k in zip(pair(dilation), taps, strict=True)]
    return None if any(t % 2 for t in total) else [t // 2 for t in total]


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
    window = (list(stride), list(padding), list(dilation), False, [0, 0], groups)
    return torch.ops.aten.convolution_backward(
        grad_output, input, weight, [weight.shape[0]], *window, list(mask)
    )
