# SPDX-License-Identifier: MIT
"""ShuffleNetV2 in plain torch; names, shapes and order of its state_dict are torchvision's.

Source: Ma et al. 2018, "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design", table 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = [
    "ShuffleNetV2",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5",
    "shufflenet_v2_x2_0",
]

_REPEATS = (4, 8, 4)


def _interleave(x: Tensor, groups: int) -> Tensor:
    """The channel shuffle as most code bases spell it: view, transpose, copy, view."""
    n, channels, height, width = x.size()
    x = x.view(n, groups, channels // groups, height, width)
    x = x.transpose(1, 2).contiguous()
    return x.view(n, channels, height, width)


def _pointwise(channels: int, out_channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, out_channels, 1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    ]


def _depthwise(channels: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, channels, 3, stride, 1, groups=channels, bias=False),
        nn.BatchNorm2d(channels),
    ]


class _Block(nn.Module):
    """Two branches, shuffled: stride 1 splits its input between them, stride 2 feeds it to both."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        half = out_channels // 2
        self.stride = stride
        if stride == 1:
            self.branch1 = nn.Sequential()
        else:
            self.branch1 = nn.Sequential(*_depthwise(channels, stride), *_pointwise(channels, half))
        entry = half if stride == 1 else channels
        self.branch2 = nn.Sequential(
            *_pointwise(entry, half), *_depthwise(half, stride), *_pointwise(half, half)
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            kept, x = x.chunk(2, dim=1)
        else:
            kept = self.branch1(x)
        return _interleave(torch.cat((kept, self.branch2(x)), dim=1), 2)


class ShuffleNetV2(nn.Module):
    """ShuffleNetV2.

    Args:
        repeats: blocks of stages 2, 3 and 4.
        channels: output channels of conv1, stages 2, 3 and 4, and conv5; those of the stages are even.
        num_classes: outputs of the classifier.
    Shape: (N, 3, H, W) -> (N, num_classes), H and W at least 32 for a last stage that sees more than padding.
    Raises: ValueError for a wrong number of repeats or channels, or an odd stage.
    """

    def __init__(
        self,
        repeats: Sequence[int] = _REPEATS,
        channels: Sequence[int] = (24, 116, 232, 464, 1024),
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        if len(repeats) != 3 or len(channels) != 5:
            raise ValueError(
                f"ShuffleNetV2: expected 3 repeats and 5 channels, got {tuple(repeats)} and {tuple(channels)}"
            )
        if any(c % 2 for c in channels[1:4]):
            raise ValueError(f"ShuffleNetV2: channels of the stages must be even, got {tuple(channels[1:4])}")
        stem, *stages, head = channels
        self.conv1 = nn.Sequential(
            nn.Conv2d(3, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem), nn.ReLU(inplace=True)
        )
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        width = stem
        for name, repeat, out in zip(("stage2", "stage3", "stage4"), repeats, stages, strict=True):
            blocks = [_Block(width, out, 2)] + [_Block(out, out, 1) for _ in range(repeat - 1)]
            setattr(self, name, nn.Sequential(*blocks))
            width = out
        self.conv5 = nn.Sequential(*_pointwise(width, head))
        self.fc = nn.Linear(head, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        x = self.stage4(self.stage3(self.stage2(x)))  # type: ignore[operator]
        return self.fc(self.conv5(x).mean((2, 3)))


def shufflenet_v2_x0_5(num_classes: int = 1000) -> ShuffleNetV2:
    """ShuffleNetV2 with 48, 96 and 192 channels in its stages: 1.4 million parameters."""
    return ShuffleNetV2(_REPEATS, (24, 48, 96, 192, 1024), num_classes)


def shufflenet_v2_x1_0(num_classes: int = 1000) -> ShuffleNetV2:
    """ShuffleNetV2 with 116, 232 and 464 channels in its stages: 2.3 million parameters."""
    return ShuffleNetV2(_REPEATS, (24, 116, 232, 464, 1024), num_classes)


def shufflenet_v2_x1_5(num_classes: int = 1000) -> ShuffleNetV2:
    """ShuffleNetV2 with 176, 352 and 704 channels in its stages: 3.5 million parameters."""
    return ShuffleNetV2(_REPEATS, (24, 176, 352, 704, 1024), num_classes)


def shufflenet_v2_x2_0(num_classes: int = 1000) -> ShuffleNetV2:
    """ShuffleNetV2 with 244, 488 and 976 channels in its stages: 7.4 million parameters."""
    return ShuffleNetV2(_REPEATS, (24, 244, 488, 976, 2048), num_classes)
