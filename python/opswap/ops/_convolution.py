# SPDX-License-Identifier: MIT
"""What the convolutions share: pairs of numbers, and the gradients as torch computes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Pair", "library_backward", "pair"]

Pair = int | Sequence[int]


def pair(value: Pair) -> list[int]:
    """One number for both directions, or one for each."""
    return [value, value] if isinstance(value, int) else list(value)


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
    """The gradients of input, weight and bias that mask asks for, differentiable and seen by every transform."""
    window = (list(stride), list(padding), list(dilation), False, [0, 0], groups)
    return torch.ops.aten.convolution_backward(
        grad_output, input, weight, [weight.shape[0]], *window, list(mask)
    )
