# SPDX-License-Identifier: MIT
"""A multi-label net with one small branch a group of classes, run in a loop, as such nets are usually written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["BranchLoop", "MultiBranch", "multi_branch"]

_CLASSES = (3, 7, 2, 5, 12, 4, 9, 2, 6, 3, 8, 20)


def _conv(channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> list[nn.Module]:
    padding = kernel_size // 2
    return [
        nn.Conv2d(channels, out_channels, kernel_size, stride, padding, bias=False),
        nn.BatchNorm2d(out_channels),
    ]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution around a residual connection (He et al. 2016, figure 5)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_conv(channels, width, 1),
            nn.ReLU(inplace=True),
            *_conv(width, width, 3),
            nn.ReLU(inplace=True),
            *_conv(width, channels, 1),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.residual(x) + x)


class SelfAttention(nn.Module):
    """Every pixel attends to all others (Zhang et al. 2019, SAGAN, section 3); gamma starts at zero."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, width, 1)
        self.key = nn.Conv2d(channels, width, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.query(x).flatten(2), self.key(x).flatten(2), self.value(x).flatten(2)
        weights = torch.softmax(query.transpose(1, 2) @ key, -1)
        return self.gamma * (value @ weights.transpose(1, 2)).view_as(x) + x


class GlobalMaxPool(nn.Module):
    """(B, C, H, W) -> (B, C)."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveMaxPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x).view(x.size(0), -1)


class BranchLoop(nn.ModuleList):
    """Runs every branch on the same input: (B, *) -> (B, total features)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], 1)


class MultiBranch(nn.Module):
    """A backbone and one branch a group of classes: Bottleneck, self-attention, global max pool, head.

    Args:
        classes: number of classes of every group, one branch each.
        channels: features of the backbone, divisible by 8. width: channels inside a Bottleneck.
    Shape: (B, 3, H, W) -> (B, sum(classes)); the branches see H / 16 x W / 16.
    Raises: ValueError if there are no classes, or for channels that are not divisible by 8.
    `net.branches = opswap.merge.branches(net.branches)` makes one branch of them all.
    """

    def __init__(self, classes: Sequence[int] = _CLASSES, channels: int = 128, width: int = 32) -> None:
        super().__init__()
        if not classes:
            raise ValueError("MultiBranch: expected the number of classes of at least one group, got none")
        if channels % 8:
            raise ValueError(f"MultiBranch: channels must be divisible by 8, got {channels}")
        layers: list[nn.Module] = []
        for before, after in ((None, 8), (8, 4), (4, 2), (2, 1)):
            layers += _conv(3 if before is None else channels // before, channels // after, 3, 2)
            layers.append(nn.ReLU(inplace=True))
        self.backbone = nn.Sequential(*layers)
        self.branches = BranchLoop(
            nn.Sequential(
                Bottleneck(channels, width),
                SelfAttention(channels, channels // 8),
                GlobalMaxPool(),
                nn.Linear(channels, number),
            )
            for number in classes
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.branches(self.backbone(x))


def multi_branch(classes: Sequence[int] = _CLASSES, channels: int = 128, width: int = 32) -> MultiBranch:
    """The net of `MultiBranch`; twelve groups of 2 to 20 classes by default."""
    return MultiBranch(classes, channels, width)
