# SPDX-License-Identifier: MIT
"""When the proof of a channel permutation covers the tensors of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opswap.ops._layout import cat_memory_format

from ...runtime.condition_texts import describe_condition
from ...runtime.shown import shown

__all__ = ["give_contiguous", "within_proof"]


def within_proof(
    tensors: tuple[Tensor, ...],
    groups: int,
    ndims: tuple[int, ...],
    channels: tuple[int, ...] | None = None,
    spatial: tuple[tuple[int, ...], ...] | None = None,
    batches: tuple[int, ...] | None = None,
) -> bool:
    """True if the proof of a channel permutation is valid for these tensors.

    Args:
        tensors: the tensors side by side, (N, C_i, *); they must be of one dtype, which torch.cat would
            otherwise promote, and hold elements.
        groups: must divide C = sum of the C_i.
        ndims, channels, spatial, batches: dimensions, values of C, sizes after it and values of N that were
            proven; None is any.
    """
    first = tensors[0]
    if not first.numel():  # of no elements a view cannot find the size that is written -1
        return False
    total = 0
    for t in tensors:
        if t.layout is not torch.strided or t.is_nested:
            return False
        if t.dim() not in ndims or t.dtype != first.dtype or t.device != first.device:
            return False
        total += t.shape[1]
    if len(tensors) == 1 and 1 < groups == total:  # of one channel per group torch's may be a view
        return False
    if total % groups or (channels is not None and total not in channels):
        return False
    if batches is not None and first.shape[0] not in batches:
        return False
    return spatial is None or tuple(first.shape[2:]) in spatial


def _why_not_covered(
    tensors: tuple[Tensor, ...],
    groups: int,
    ndims: tuple[int, ...],
    channels: Any = None,
    spatial: Any = None,
    batches: Any = None,
) -> str:
    first, total = tensors[0], sum(t.shape[1] if t.dim() > 1 else 0 for t in tensors)
    for t in tensors:
        if t.dim() not in ndims:
            return f"an input has {t.dim()} dimensions: proven for {_listed(ndims)}"
        if t.dtype != first.dtype or t.device != first.device:
            return f"inputs differ: {shown(first)} and {shown(t)}"
    if len(tensors) == 1 and 1 < groups == total:
        return f"a shuffle of {total} groups of one channel moves nothing"
    if total % groups or (channels is not None and total not in channels):
        proven = f"multiples of {groups}" if channels is None else _listed(channels)
        return f"the inputs have {total} channels: proven for {proven}"
    if batches is not None and first.shape[0] not in batches:
        return f"the batch has {first.shape[0]} images: proven for {_listed(batches)}"
    if spatial is not None and tuple(first.shape[2:]) not in spatial:
        return f"the input has sizes {tuple(first.shape[2:])}: proven for {_listed(spatial)}"
    return f"no kernel for {shown(first)}"


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(map(str, values))


describe_condition(within_proof, _why_not_covered)


def give_contiguous(tensors: tuple[Tensor, ...]) -> bool:
    """True if what opswap joins of these tensors is contiguous."""
    return cat_memory_format(tensors) is torch.contiguous_format
