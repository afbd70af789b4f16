# SPDX-License-Identifier: MIT
"""Values as messages show them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from opswap._table import short_name

__all__ = ["contiguous_images", "shown"]

_SHORT = 80


def shown(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, Tensor):
        kind = short_name(value.dtype)
        device = "" if value.is_cpu else f" on {value.device}"
        return f"{kind} {tuple(value.shape)}{_format(value)}{device}"
    if isinstance(value, nn.Module):
        return f"a {type(value).__name__}"
    if type(value) in (list, tuple) and value and all(isinstance(v, Tensor) for v in value):
        return f"a {type(value).__name__} of {len(value)} tensors"
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."


def contiguous_images(input: Any) -> str:
    """That kernels for channels_last did not run because of the format of this input, or ""."""
    if not isinstance(input, Tensor) or input.dim() != 4 or not input.is_contiguous():
        return ""
    if input.is_contiguous(memory_format=torch.channels_last):
        return ""
    return f"the kernels support channels_last: the input is {shown(input)}, contiguous"


def _format(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f" {tensor.layout}"
    if tensor.is_contiguous():
        return ""
    for ndim, name in ((4, "channels_last"), (5, "channels_last_3d")):
        if tensor.dim() == ndim and tensor.is_contiguous(memory_format=getattr(torch, name)):
            return f" {name}"
    return f" strides {tensor.stride()}"
