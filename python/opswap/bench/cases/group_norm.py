# SPDX-License-Identifier: MIT
"""GroupNorm and InstanceNorm in channels_last at shapes of U-Nets, residual networks and style transfer.

torch's GroupNorm has two forms: the function as it is, and on a contiguous copy whose result is copied back. torch's
InstanceNorm returns contiguous tensors, which the convolution after it copies again: that copy is not counted, nor
the one of the gradient. With a gradient in channels_last its own gradients were wrong (torch 2.13). Parameters are
float32. A backward gives the gradients of input, weight and bias; a "step" is forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import Case, shape_text

from .calls import DIRECTIONS, Step

__all__ = ["cases"]

# Images of a batch of 32, channels, height and width, groups.
_GROUPS = (
    (8, 64, 56, 56, 32),
    (2, 128, 112, 112, 32),
    (16, 256, 14, 14, 32),
    (1, 64, 256, 256, 32),
    (32, 32, 7, 7, 8),
    (8, 30, 28, 28, 5),
)
_INSTANCES = ((1, 32, 256, 256), (4, 128, 64, 64), (1, 64, 128, 128))
_DIRECTIONS = ("forward", "backward", "step")
# Relative to the largest value: torch's sums in channels_last are in float32.
_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 3e-2}


def cases(batch: int) -> Iterator[Case]:
    """Both functions at nine shapes, in float32 and mixed with bfloat16."""
    shapes = [("group_norm", size, groups) for *size, groups in _GROUPS]
    shapes += [("instance_norm", size, size[1]) for size in _INSTANCES]
    for name, (images, *image), groups in shapes:
        size = (max(1, images * batch // 32), *image)
        text = shape_text(size) + (f" g {groups}" if name == "group_norm" else "")
        for dtype, tolerance in _TOLERANCE.items():
            for direction in _DIRECTIONS:
                build = partial(_build, name, size, groups, dtype, direction)
                short = short_name(dtype)
                yield Case(
                    name,
                    text,
                    short,
                    direction,
                    build,
                    {"opswap": "NHWC"},
                    0,
                    tolerance,
                    direction == "forward",
                )


def _by_planes(function: Callable[..., Tensor], x: Tensor, *arguments: object) -> Tensor:
    return function(x.contiguous(), *arguments).contiguous(memory_format=torch.channels_last)


def _forms(name: str, groups: int) -> dict[str, Callable[..., Tensor]]:
    if name == "group_norm":
        planes = partial(_by_planes, T.group_norm)
        forms = {"torch": T.group_norm, "torch NCHW": planes, "opswap": F.group_norm}
        return {key: lambda x, w, b, f=f: f(x, groups, w, b) for key, f in forms.items()}
    forms = {"torch": T.instance_norm, "opswap": F.instance_norm}
    return {key: lambda x, w, b, f=f: f(x, None, None, w, b) for key, f in forms.items()}


def _build(
    name: str, size: tuple[int, ...], groups: int, dtype: torch.dtype, direction: str
) -> dict[str, Step]:
    x = torch.randn(size).to(dtype).contiguous(memory_format=torch.channels_last)
    weight, bias = (torch.rand(size[1]).add(0.5) for _ in range(2))
    leaves = [t.requires_grad_() for t in (x, weight, bias)]
    gradient = torch.randn(size).to(dtype)
    run = DIRECTIONS[direction]
    forms = {key: partial(form, *leaves) for key, form in _forms(name, groups).items()}
    return {
        key: run(form, leaves, torch.empty_like(form().detach()).copy_(gradient))
        for key, form in forms.items()
    }
