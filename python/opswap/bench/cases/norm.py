# SPDX-License-Identifier: MIT
"""BatchNorm and ReLU in one, against torch's batch_norm followed by relu_, at shapes of ShuffleNetV2 and LPRNet.

Parameters are float32. A forward is that of training (its graph is recorded), the backward gives the gradients of
input, weight and bias; "inference" has the running statistics and no graph. A payload is what a kernel that reads its
input as often as the arithmetic needs must move: 3 tensors forward, 5 backward, 2 in inference.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import LAYOUTS, Case, shape_text

from .calls import DIRECTIONS, Step

__all__ = ["away_from_the_kink", "cases", "statistics"]

# Channels, height and width; LPRNet's with two images for each of the batch.
_SHUFFLENET = ((24, 112, 112), (58, 56, 56), (58, 28, 28), (116, 14, 14), (232, 7, 7))
_LPRNET = ((128, 20, 90),)
_MOVED = {"forward": 3, "backward": 5, "inference": 2}
# Relative to the largest value.
_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 3e-2}


def cases(batch: int) -> Iterator[Case]:
    """batch_norm_relu at six shapes, in both layouts, in float32 and mixed with bfloat16."""
    sizes = [(batch, *size) for size in _SHUFFLENET] + [(2 * batch, *size) for size in _LPRNET]
    for size in sizes:
        for dtype, tolerance in _TOLERANCE.items():
            for layout, memory_format in LAYOUTS.items():
                for direction, moved in _MOVED.items():
                    build = partial(_build, size, dtype, memory_format, direction)
                    payload = torch.Size(size).numel() * dtype.itemsize * moved // 2
                    shape, short = shape_text(size), short_name(dtype)
                    ours, keeps = {"opswap": layout}, direction == "forward"
                    yield Case(
                        "batch_norm_relu", shape, short, direction, build, ours, payload, tolerance, keeps
                    )


def _stock(x: Tensor, *arguments: object) -> Tensor:
    return T.relu_(T.batch_norm(x, *arguments))


def _build(
    size: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format, direction: str
) -> dict[str, Step]:
    weight, bias = (torch.rand(size[1]).add(0.5).requires_grad_() for _ in range(2))
    x = away_from_the_kink(torch.randn(size), weight, bias)
    x = x.to(dtype).contiguous(memory_format=memory_format).requires_grad_()
    forms = {
        name: partial(f, x, *statistics(x), weight, bias, direction != "inference")
        for name, f in (("torch", _stock), ("opswap", F.batch_norm_relu))
    }
    gradient = torch.randn_like(x)
    return {name: DIRECTIONS[direction](form, (x, weight, bias), gradient) for name, form in forms.items()}


@torch.no_grad()
def away_from_the_kink(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """No value that one rounding lets pass the relu and another cuts."""
    z = T.batch_norm(x, None, None, weight, bias, True)
    return torch.where(z.abs() < 0.02, x + 0.1, x)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros(x.shape[1]), torch.ones(x.shape[1])
