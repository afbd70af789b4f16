# SPDX-License-Identifier: MIT
"""LPRNet in plain torch; its state_dict has the names, shapes and order that most PyTorch ports share.

Source: Zherzdev and Gruzdev 2018, "LPRNet: License Plate Recognition via Deep Neural Networks", with the
pools over channels (MaxPool3d on a batch of images) and the global context of those ports.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["LPRNet", "lprnet"]

# Stages of the backbone, by index, whose activations join the global context.
_CONTEXT = (2, 6, 13, 22)
_CONTEXT_CHANNELS = 64 + 128 + 256


class _Bottleneck(nn.Module):
    """1x1, 3x1, 1x3, 1x1 convolutions with a quarter of the output channels inside."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        inner = out_channels // 4
        self.block = nn.Sequential(
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, inner, (3, 1), padding=(1, 0)),
            nn.ReLU(),
            nn.Conv2d(inner, inner, (1, 3), padding=(0, 1)),
            nn.ReLU(),
            nn.Conv2d(inner, out_channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


def _activated(layer: nn.Module, channels: int) -> tuple[nn.Module, ...]:
    return layer, nn.BatchNorm2d(channels), nn.ReLU()


def _backbone(num_classes: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        *_activated(nn.Conv2d(3, 64, 3), 64),
        nn.MaxPool3d((1, 3, 3), (1, 1, 1)),
        *_activated(_Bottleneck(64, 128), 128),
        nn.MaxPool3d((1, 3, 3), (2, 1, 2)),
        *_activated(_Bottleneck(64, 256), 256),
        *_activated(_Bottleneck(256, 256), 256),
        nn.MaxPool3d((1, 3, 3), (4, 1, 2)),
        nn.Dropout(dropout),
        *_activated(nn.Conv2d(64, 256, (1, 4)), 256),
        nn.Dropout(dropout),
        *_activated(nn.Conv2d(256, num_classes, (13, 1)), num_classes),
    )


def _global_context(features: Sequence[Tensor]) -> Tensor:
    """Bring the kept activations to one size, divide each by its mean square, and concatenate."""
    early, wide, deep, last = features
    sized = (
        F.avg_pool2d(early, 5, 5),
        F.avg_pool2d(wide, 5, 5),
        F.avg_pool2d(deep, (4, 10), (4, 2)),
        last,
    )
    return torch.cat([f / f.pow(2).mean() for f in sized], 1)


class LPRNet(nn.Module):
    """LPRNet: reads a line of characters without segmenting it, for a CTC loss.

    Args:
        num_classes: characters and the CTC blank.
        dropout: probability of dropping, twice.
    Shape: (N, 3, 24, 94) -> logits (N, num_classes, 18), one column a time step.
    """

    def __init__(self, num_classes: int, dropout: float = 0.5) -> None:
        super().__init__()
        self.backbone = _backbone(num_classes, dropout)
        self.container = nn.Sequential(nn.Conv2d(_CONTEXT_CHANNELS + num_classes, num_classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        features = []
        for i, layer in enumerate(self.backbone):
            x = layer(x)
            if i in _CONTEXT:
                features.append(x)
        return self.container(_global_context(features)).mean(2)


def lprnet(num_classes: int = 68, dropout: float = 0.5) -> LPRNet:
    """LPRNet for plates of 24 x 94 pixels; the published weights for Chinese plates have 68 classes."""
    return LPRNet(num_classes, dropout)
