# SPDX-License-Identifier: MIT
"""Conditions of several rules, evaluated in a rewritten forward; torch.compile traces through them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from opswap._torch import is_ordinary

from ..runtime.condition_texts import describe_condition
from ..runtime.shown import shown
from .kept import elements

__all__ = ["CONVOLUTIONS", "normed_alone_fast", "normed_fast", "on_cpu", "plain_floats", "poolable", "trains"]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# The kernels of BatchNorms go through float64 one element at a time: a step takes 1.0 to 2.4 times as long as torch's
# (Zen 4).
_NORMED = (torch.float32, torch.bfloat16, torch.float16)
# Elements from which BatchNorms alone are worth it in training, where calls, which cost less in torch, outweigh the
# arithmetic below: so small MobileNetV3 and V4 (8 images) and GhostNetV3 (32) train 1.03 times as fast as if all were
# replaced; with all below 131,072 left to torch, GhostNetV3 trains 0.95 times as fast (Emerald Rapids).
_FEWEST_ALONE = 1 << 13


def on_cpu(input: Any) -> bool:
    """True unless the value is a tensor on another device, for which there is no kernel."""
    return getattr(input, "is_cpu", True)


def poolable(
    input: Any, ndims: tuple[int, ...] | None = None, dtypes: Collection[torch.dtype] = _FLOATS
) -> bool:
    """True for a tensor that opswap's pools support: dense, of one of these dimensions and dtypes."""
    if not isinstance(input, Tensor) or (ndims is not None and input.dim() not in ndims):
        return False
    return input.dtype in dtypes and input.layout is torch.strided and not input.is_nested


def normed_fast(input: Tensor) -> bool:
    """True if opswap's batch normalisation is faster than torch's on this tensor, for which `poolable` holds."""
    return input.dtype in _NORMED


def normed_alone_fast(input: Tensor) -> bool:
    """`normed_fast` for a training step without an activation, which saves nothing but the kernel's own gain."""
    return normed_fast(input) and input.numel() >= _FEWEST_ALONE


def _why_slower(input: Tensor) -> str:
    if not on_cpu(input):
        return f"no kernel for {input.device.type}"
    return f"torch is faster on float64: the input is {shown(input)}"


def _why_slower_alone(input: Tensor) -> str:
    if not normed_fast(input) or not on_cpu(input):
        return _why_slower(input)
    return elements(input, _FEWEST_ALONE)


describe_condition(on_cpu, lambda input: f"no kernel for {input.device.type}")
describe_condition(poolable, lambda input, ndims=None: f"no kernel for {shown(input)}")
describe_condition(normed_fast, _why_slower)
describe_condition(normed_alone_fast, _why_slower_alone)


def plain_floats(*tensors: Any) -> bool:
    """True for tensors that opswap's linear maps support, of torch's classes, one dtype and device.

    Weights of modules are among them, whose classes nothing else looks at.
    """
    first = tensors[0]
    same = all(poolable(t) and t.dtype == first.dtype and t.device == first.device for t in tensors)
    return same and all(map(is_ordinary, tensors))


def trains(input: Tensor) -> bool:
    """True if a gradient will be needed for values computed from `input`."""
    return torch.is_grad_enabled() and input.requires_grad
