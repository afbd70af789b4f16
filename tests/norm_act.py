# SPDX-License-Identifier: MIT
"""A normalisation with its activation inside, as timm's BatchNormAct2d, and a convolution for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as T
from torch import Tensor, nn

__all__ = ["NormAct", "convolution"]


def convolution(channels: int, outputs: int, side: int = 1, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(channels, outputs, side, padding=side // 2, bias=False, **options)


class NormAct(nn.BatchNorm2d):
    """The forward is timm's in all that matters to a capture."""

    def __init__(self, channels: int, act: Callable[[], nn.Module] = nn.ReLU6, **options: Any) -> None:
        super().__init__(channels, **options)
        self.drop, self.act = nn.Identity(), act()

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.ndim == 4, f"expected 4D input (got {x.ndim}D input)")
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        given = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if given else (None, None)
        of_batch = True if self.training else mean is None
        y = T.batch_norm(x, mean, var, self.weight, self.bias, of_batch, factor, self.eps)
        return self.act(self.drop(y))
