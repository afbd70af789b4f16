# SPDX-License-Identifier: MIT
"""A small detector and its loss in two forms: with sizes that depend on data, and with fixed sizes.

Each cell of 8 x 8 pixels predicts the class of the digit whose centre it contains, or background, and the digit's box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import opswap
from opswap.shapes import PaddedImages, PaddedTarget

from .canvases import STRIDE
from .digits import CLASSES

__all__ = ["BACKGROUND", "Batch", "Detector", "boxes_of", "data_dependent_loss", "fixed_loss"]

BACKGROUND = CLASSES
_STRIDES = (2, 4, STRIDE)  # of the features after the convolutions that halve them
_SIDE = 16.0  # of a box if the network returns 0, in pixels
_EPS = 1e-7


class Detector(nn.Module):
    """Three convolutions of stride 2, one of stride 1, and a 1 x 1 convolution to 11 classes and 4 numbers of a box."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        channels = (1, width, 2 * width, 4 * width, 4 * width)
        self.convs = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], 3, stride=2 if i < 3 else 1, padding=1) for i in range(4)
        )
        self.head = nn.Conv2d(channels[-1], CLASSES + 1 + 4, 1)

    def forward(self, images: Tensor, inside: Sequence[Tensor] = ()) -> Tensor:
        """(N, 1, H, W) -> (N, 15, H / 8, W / 8).

        inside: bool, False at padding, of every stride: (N, H / 2, W / 2), (N, H / 4, W / 4), (N, H / 8, W / 8).
        Features there are set to 0 after every convolution, as if the image ended there and the next convolution
        added zeros of its own.
        """
        x = images
        for i, conv in enumerate(self.convs):
            x = conv(x)
            if inside:
                # Before the ReLU, whose backward then reads the result that the next convolution keeps anyway.
                x = x * inside[min(i, len(inside) - 1)][:, None]
            x = F.relu(x)
        return self.head(x)


def boxes_of(output: Tensor) -> Tensor:
    """The boxes (..., 4, h, w) as (x1, y1, x2, y2) in pixels, from the last four channels of a detector's output."""
    height, width = output.shape[-2:]
    rows = torch.arange(height, dtype=output.dtype, device=output.device)[:, None]
    columns = torch.arange(width, dtype=output.dtype, device=output.device)
    dx, dy, w, h = output.unbind(-3)
    x, y = (columns + 0.5 + dx) * STRIDE, (rows + 0.5 + dy) * STRIDE
    half_width, half_height = (_SIDE / 2 * side.clamp(-3, 3).exp() for side in (w, h))
    return torch.stack([x - half_width, y - half_height, x + half_width, y + half_height], -3)


def data_dependent_loss(
    net: nn.Module, images: Sequence[Tensor], targets: Sequence[dict[str, Any]]
) -> Tensor:
    """Cross entropy over all cells plus the mean of 1 - GIoU of the boxes, image after image, each of its own size.

    Args: images: (1, h, w) each; targets: boxes (n, 4) and labels (n,) each.
    """
    logits, classes, found, wanted = [], [], [], []
    for image, target in zip(images, targets, strict=True):
        output = net(image[None])[0]
        cell_class = torch.full(output.shape[1:], BACKGROUND)
        cell_box = output.new_zeros(4, *output.shape[1:])
        for box, label in zip(target["boxes"], target["labels"], strict=True):
            column, row = ((box[:2] + box[2:]) / 2 // STRIDE).long().tolist()
            cell_class[row, column] = label
            cell_box[:, row, column] = box
        logits.append(output[: CLASSES + 1].flatten(1).T)
        classes.append(cell_class.flatten())
        positive = cell_class != BACKGROUND
        if positive.any():
            rows, columns = torch.nonzero(positive, as_tuple=True)
            found.append(boxes_of(output[CLASSES + 1 :])[:, rows, columns].T)
            wanted.append(cell_box[:, positive].T)
    loss = F.cross_entropy(torch.cat(logits), torch.cat(classes))
    if found:
        loss = loss + _giou_loss(torch.cat(found), torch.cat(wanted)).mean()
    return loss


def _giou_loss(a: Tensor, b: Tensor) -> Tensor:
    """1 - GIoU of pairs of boxes (n, 4). Source: Rezatofighi et al. 2019, algorithm 1."""
    shared = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - shared
    return 1 - shared / (union + _EPS) + (hull - union) / (hull + _EPS)


class Batch(NamedTuple):
    """What `fixed_loss` reads, of one shape for every batch.

    images: (N, 1, H, W). inside: (N, H / s, W / s) bool for s = 2, 4, 8, False at padding. boxes: (N, M, 4).
    labels: (N, M). valid: (N, M) bool, False at padding.
    """

    images: Tensor
    inside: tuple[Tensor, ...]
    boxes: Tensor
    labels: Tensor
    valid: Tensor

    @staticmethod
    def of(images: PaddedImages, targets: Sequence[PaddedTarget]) -> Batch:
        """What opswap.shapes.collate_fixed yields, stacked."""
        fields = (torch.stack([t[name] for t in targets]) for name in ("boxes", "labels", "valid"))
        return Batch(images.images, tuple(images.valid(stride) for stride in _STRIDES), *fields)

    def double(self) -> Batch:
        """Images and boxes in float64."""
        return self._replace(images=self.images.double(), boxes=self.boxes.double())


def fixed_loss(net: nn.Module, batch: Batch) -> Tensor:
    """The same loss as `data_dependent_loss`, of a padded batch, with sizes that do not depend on data."""
    output = net(batch.images, batch.inside)
    count, _, height, width = output.shape
    column, row = ((batch.boxes[..., :2] + batch.boxes[..., 2:]) / 2 // STRIDE).long().unbind(-1)
    cell = row * width + column
    # Padded boxes write into a cell of their own after the last one.
    classes = torch.full((count, height * width + 1), BACKGROUND, device=output.device)
    classes = classes.scatter(1, torch.where(batch.valid, cell, height * width), batch.labels)[:, :-1]
    inside = batch.inside[-1].flatten(1)
    logits = output[:, : CLASSES + 1].flatten(2)
    boxes = boxes_of(output[:, CLASSES + 1 :]).flatten(2)
    found = boxes.gather(2, cell[:, None].expand(-1, 4, -1)).transpose(1, 2)
    return opswap.shapes.losses.cross_entropy(logits, classes, inside) + opswap.shapes.losses.giou(
        found, batch.boxes, batch.valid, eps=_EPS
    )
