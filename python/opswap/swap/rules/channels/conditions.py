# SPDX-License-Identifier: MIT
"""When the proof of a channel permutation covers the tensors of a call."""

from __future__ import annotations

import torch
from torch import Tensor

from opswap.ops._layout import cat_memory_format

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


def give_contiguous(tensors: tuple[Tensor, ...]) -> bool:
    """True if what opswap joins of these tensors is contiguous."""
    return cat_memory_format(tensors) is torch.contiguous_format
