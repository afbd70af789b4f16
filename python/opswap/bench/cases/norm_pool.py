# SPDX-License-Identifier: MIT
"""BatchNorm, ReLU and max pool in one, against torch's three functions and opswap's two, at first layers of networks.

Parameters are float32. Directions and forms are as in `norm`; "parts" are `batch_norm_relu` and `max_pool2d`. A payload
is the input read twice and the output written in training, once in inference; backward the input read twice, its
gradient written, and what is read of the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import LAYOUTS, Case, shape_text

from .calls import DIRECTIONS, Step
from .norm import away_from_the_kink, statistics

__all__ = ["cases"]

# Channels, height and width, and the window: ShuffleNetV2, ResNet, two stages of VGG, overlapping windows.
_SIZES: tuple[tuple[tuple[int, int, int], tuple[int, int, int]], ...] = (
    ((24, 112, 112), (3, 2, 1)),
    ((64, 112, 112), (3, 2, 1)),
    ((64, 64, 64), (2, 2, 0)),
    ((256, 14, 14), (2, 2, 0)),
    ((64, 22, 92), (3, 1, 1)),
)
_READ = {"forward": 2, "backward": 3, "inference": 1}
_TOLERANCE = {torch.float32: 1e-2, torch.bfloat16: 3e-2}


def cases(batch: int) -> Iterator[Case]:
    """batch_norm_act_max_pool2d in both layouts, in float32 and mixed with bfloat16."""
    for size, window in _SIZES:
        for dtype, tolerance in _TOLERANCE.items():
            for layout, memory_format in LAYOUTS.items():
                for direction, read in _READ.items():
                    sizes = (batch, *size)
                    build = partial(_build, sizes, window, dtype, memory_format, direction)
                    inputs = torch.Size(sizes).numel()
                    outputs = T.max_pool2d(torch.empty(sizes, device="meta"), *window).numel()
                    payload = (inputs * read + outputs) * dtype.itemsize // 2
                    name = f"batch_norm_relu_max_pool k{window[0]}s{window[1]}"
                    shape, short = shape_text(sizes), short_name(dtype)
                    keeps = direction == "forward"
                    yield Case(
                        name, shape, short, direction, build, {"opswap": layout}, payload, tolerance, keeps
                    )


def _stock(window: tuple[int, int, int], x: Tensor, *arguments: Any) -> Tensor:
    return T.max_pool2d(T.relu_(T.batch_norm(x, *arguments)), *window)


def _parts(window: tuple[int, int, int], x: Tensor, *arguments: Any) -> Tensor:
    return F.max_pool2d(F.batch_norm_relu(x, *arguments), *window)


def _joined(window: tuple[int, int, int], x: Tensor, *arguments: Any) -> Tensor:
    kernel, stride, padding = window
    sides = {"kernel_size": kernel, "stride": stride, "padding": padding}
    return F.batch_norm_act_max_pool2d(x, *arguments, activation="relu", **sides)


def _build(
    size: tuple[int, ...],
    window: tuple[int, int, int],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    direction: str,
) -> dict[str, Step]:
    weight, bias = (torch.rand(size[1]).add(0.5).requires_grad_() for _ in range(2))
    x = torch.randn(size).mul(4).round().div(4)  # in 16 bits each form rounds: neighbours stay equal or apart
    x = away_from_the_kink(x, weight, bias)
    x = x.to(dtype).contiguous(memory_format=memory_format).requires_grad_()
    training = direction != "inference"
    forms = {
        name: partial(f, window, x, *statistics(x), weight, bias, training)
        for name, f in (("torch", _stock), ("parts", _parts), ("opswap", _joined))
    }
    gradient = torch.randn_like(forms["torch"]())
    return {name: DIRECTIONS[direction](form, (x, weight, bias), gradient) for name, form in forms.items()}
