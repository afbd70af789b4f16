# SPDX-License-Identifier: MIT
"""Images between the two memory formats, for operators whose kernels read channels_last alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opswap import _core

from ._layout import is_strided, suggest_memory_format

__all__ = ["has_planes", "to_pixels", "to_planes"]


def has_planes(input: Any) -> bool:
    """True for images of which torch's operators make contiguous ones: their channels are not neighbours in memory."""
    if not isinstance(input, Tensor):
        return False
    try:
        if input.stride()[1] == 1:  # first, as most images are those
            return False
    except (IndexError, RuntimeError):  # of fewer dimensions, or without strides
        return False
    return input.dim() == 4 and is_strided(input) and suggest_memory_format(input) is torch.contiguous_format


def to_pixels(images: Tensor) -> Tensor:
    """Plain images of the CPU in channels_last; themselves if they are."""
    if images.is_contiguous(memory_format=torch.channels_last):
        return images
    made = _core.new_format(images, True)
    return images.contiguous(memory_format=torch.channels_last) if made is NotImplemented else made


def to_planes(images: Tensor) -> Tensor:
    """The same in the contiguous format."""
    made = _core.new_format(images, False)
    return images.contiguous() if made is NotImplemented else made
