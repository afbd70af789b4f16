# SPDX-License-Identifier: MIT
"""How the values of N branches lie in one tensor, and how to go from one way to another.

A branch has a value of sizes (B, C, *). WIDE, STACKED and BATCHED are views of each other if the tensor is
contiguous; WIDE and STACKED also if it is channels_last.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

__all__ = ["Form", "align_weight", "branch_sizes", "change_form", "channels_innermost"]


class Form(Enum):
    """
    SHARED: one tensor (B, C, *) that all branches have in common.
    WIDE: (B, N * C, *), the channels of one branch after those of another.
    STACKED: (B, N, C, *).
    BATCHED: (B * N, C, *), the branches of one image after another.
    LISTED: N tensors (B, C, *).
    RAGGED: (B, *, sum of the C), every branch with its own number of features.
    WEIGHT: (N, *), a parameter or what is computed from parameters alone.
    LOCAL, GLOBAL: no tensor but sizes and the like; as one branch sees them, or with N * B for B.
    """

    SHARED = "shared"
    WIDE = "wide"
    STACKED = "stacked"
    BATCHED = "batched"
    LISTED = "listed"
    RAGGED = "ragged"
    WEIGHT = "weight"
    LOCAL = "local"
    GLOBAL = "global"


def channels_innermost(x: Tensor) -> bool:
    """True for channels_last memory, of any number of dimensions."""
    return x.dim() > 2 and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def _stack(xs: Sequence[Tensor]) -> Tensor:
    """torch.stack(xs, 1), (N) of single numbers; tensors in channels_last stay so, which no copy has to turn."""
    if all(map(channels_innermost, xs)):
        return torch.cat(list(xs)).unflatten(0, (len(xs), xs[0].shape[0])).transpose(0, 1)
    return torch.stack(xs, min(1, xs[0].dim()))


def _to_stacked(x: Any, source: Form, branches: int) -> Tensor:
    if source is Form.WIDE:
        return _split_channels(x, branches)
    if source is Form.BATCHED:
        return x.unflatten(0, (x.shape[0] // branches, branches))
    if source is Form.LISTED:
        return _stack(x)
    if source is Form.SHARED:
        return x.unsqueeze(1).expand(-1, branches, *(-1,) * (x.dim() - 1))
    raise ValueError(f"a {source.value} value cannot be stacked")


def _split_channels(x: Tensor, branches: int) -> Tensor:
    """x.unflatten(1, (branches, -1)); see `_flatten_channels`."""
    sizes = branches, x.shape[1] // branches
    if not channels_innermost(x):
        return x.unflatten(1, sizes)
    return x.movedim(1, -1).unflatten(-1, sizes).movedim((-2, -1), (1, 2))


def _stacked_channels_innermost(x: Tensor) -> bool:
    """True for a stacked value in channels_last memory, that of one tensor or of one after another."""
    return x.dim() > 3 and not x.is_contiguous() and x.stride(2) == 1


def _flatten_channels(x: Tensor) -> Tensor:
    """x.flatten(1, 2), but in channels_last a batch of one keeps the stride by which convolutions know that format."""
    if not _stacked_channels_innermost(x):
        return x.flatten(1, 2)
    return x.movedim((1, 2), (-2, -1)).flatten(-2).movedim(-1, 1)


def _from_stacked(x: Tensor, target: Form) -> Any:
    if target is Form.WIDE:
        return _flatten_channels(x)
    if target is Form.BATCHED:
        return x.flatten(0, 1)
    if target is Form.LISTED:
        # The gradient of unbind is contiguous; that of chunks has the memory format of the parts.
        is_wide = _stacked_channels_innermost(x) and x.stride(1) == x.shape[2]
        return _flatten_channels(x).chunk(x.shape[1], 1) if is_wide else x.unbind(1)
    raise ValueError(f"a stacked value cannot be made {target.value}")


def change_form(x: Any, source: Form, target: Form, branches: int) -> Any:
    """The same values in another form."""
    if source is target:
        return x
    if source is Form.WIDE and target is Form.LISTED:
        return x.chunk(branches, 1)
    if source is Form.LISTED and target is Form.WIDE:
        return torch.cat(x, 1)
    if source is Form.SHARED and target is Form.LISTED:
        return (x,) * branches
    if source is Form.WEIGHT and target is Form.LISTED:
        return x.unbind(0)
    if source is Form.LISTED and target is Form.RAGGED:
        return torch.cat(x, -1)
    stacked = x if source is Form.STACKED else _to_stacked(x, source, branches)
    return stacked if target is Form.STACKED else _from_stacked(stacked, target)


def branch_sizes(x: Tensor | Sequence[Tensor], form: Form, branches: int, target: Form) -> torch.Size:
    """Sizes of one branch's value, with N * B for B if target is GLOBAL."""
    if form is Form.LISTED:
        sizes = list(x[0].shape)
    elif form is Form.WEIGHT:
        return x.shape[1:]
    else:
        sizes = list(x.shape)
        if form is Form.WIDE:
            sizes[1] //= branches
        elif form is Form.STACKED:
            del sizes[1]
        elif form is Form.BATCHED:
            sizes[0] //= branches
    if target is Form.GLOBAL:
        sizes[0] *= branches
    return torch.Size(sizes)


def align_weight(weight: Tensor, rank: int) -> Tensor:
    """(N, *sizes) as (1, N, 1, ..., *sizes), to meet a stacked value of branches with `rank` dimensions."""
    missing = rank - (weight.dim() - 1)
    return weight.view(weight.shape[0], *(1,) * missing, *weight.shape[1:]).movedim(0, 1)
