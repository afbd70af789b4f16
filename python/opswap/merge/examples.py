# SPDX-License-Identifier: MIT
"""Guess what a branch is called with, from its first layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .layers import LAYERS

__all__ = ["guess_example"]

_BATCH = 2
_SIDES = (8, 7, 14, 16, 32, 64)
_LENGTHS = (5, 16, 49)


def guess_example(branch: nn.Module) -> tuple[Tensor, ...]:
    """One input on which the branch runs.

    Raises: ValueError if none of the guesses does.
    """
    twin = copy.deepcopy(branch)
    twin.eval()
    tried = []
    for sizes in _guesses(branch):
        dtype = next((p.dtype for p in branch.parameters()), torch.float32)
        device = next((p.device for p in branch.parameters()), torch.device("cpu"))
        x = torch.zeros(_BATCH, *sizes, dtype=dtype, device=device)
        try:
            with torch.no_grad():
                twin(x.clone())
        except Exception:
            tried.append((_BATCH, *sizes))
            continue
        return (x,)
    raise ValueError(f"branches: no input size could be guessed (tried {tried[:4]}); pass example_input")


def _guesses(branch: nn.Module) -> Iterator[tuple[int, ...]]:
    """Sizes after the batch."""
    layers: list[Any] = [m for m in branch.modules() if type(m) in LAYERS]
    first = layers[0] if layers else None
    tokens = any(isinstance(m, nn.MultiheadAttention) for m in layers)
    if isinstance(first, nn.Linear):
        yield from () if tokens else ((first.in_features,),)
        yield from ((n, first.in_features) for n in _LENGTHS)
    if isinstance(first, nn.LayerNorm):
        yield from () if tokens else (first.normalized_shape,)
        yield from ((n, *first.normalized_shape) for n in _LENGTHS)
    name = type(first).__name__ if first is not None else "Conv2d"
    widths = [c for c in map(_channels, layers) if c is not None] or [16]
    # A block may give its first layer a half of its channels.
    candidates = dict.fromkeys((widths[0], 2 * widths[0], *widths))
    for channels in candidates:
        for dimensions in [int(name[-2])] if name[-1] == "d" else [2, 1, 3]:
            yield from ((channels, *(side,) * dimensions) for side in _SIDES)
        yield (channels,)


def _channels(layer: Any) -> int | None:
    for name in ("in_channels", "num_features", "num_channels", "in_features"):
        if hasattr(layer, name):
            return getattr(layer, name)
    return None
