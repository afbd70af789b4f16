# SPDX-License-Identifier: MIT
"""Models that ask for sizes, types and flags before they shuffle."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Wrapped
from .shuffles import by_size


def asserts(x: Tensor) -> Tensor:
    assert x.size(1) % 4 == 0, "channels"
    return by_size(x)


def raises(x: Tensor) -> Tensor:
    if x.shape[2] < 2 or x.shape[1] % 3:
        raise ValueError("too small")
    return by_size(x)


def depends_on_height(x: Tensor) -> Tensor:
    return by_size(x) if x.shape[-2] > 3 else by_size(x, 3)


def depends_on_dimensions(x: Tensor) -> Tensor:
    return by_size(x) if x.dim() == 4 else x


def asks_for_type(x: Tensor) -> Tensor:
    return by_size(x) if isinstance(x, Tensor) else x[0]


def asks_for_dtype(x: Tensor) -> Tensor:
    return by_size(x) if x.dtype == torch.float32 else by_size(x.float())


class Only(nn.Module):
    """A function as a whole model."""

    def __init__(self, body: object) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class ModeDependent(Wrapped):
    """Shuffles otherwise in training than in evaluation."""

    def __init__(self) -> None:
        super().__init__(by_size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.after(by_size(x, 2) if self.training else by_size(x, 3))


class Training(Wrapped):
    """Shuffles in training only."""

    def __init__(self) -> None:
        super().__init__(by_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(by_size(self.before(x)) if self.training else self.before(x))


class FunctionalDropout(Wrapped):
    """Hands its training flag to a function."""

    def __init__(self) -> None:
        super().__init__(by_size)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(by_size(self.before(x)), 0.5, self.training)


class Strided(nn.Module):
    """Decides by the size of what a convolution returns, after a normalisation that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, 2, 1)
        self.bn = nn.BatchNorm2d(12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x))
        return by_size(x) if x.shape[2] > 2 else x


class Counted(nn.Module):
    """A convolution that a guard must not call, as it writes down its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.conv(x)


class AfterCounted(nn.Module):
    """Decides by the size of what a module of the user returns."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = Counted()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return by_size(x) if x.shape[2] > 2 else x


class NumberOfSize(nn.Module):
    """Makes sizes Python numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        half = int(x.size(1) * 0.5)
        rows = [x[:, :, i] for i in range(x.size(2))]
        first, second = by_size(torch.stack(rows, 2)).split([half, half], 1)
        return self.conv(torch.cat((second, first), 1))


class NumbersFurtherDown(nn.Module):
    """Makes the sizes of what its modules return Python numbers, and counts images with len()."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        groups = int(y.size(1)) // 4
        y = y.view(len(y), groups, -1, y.size(2), y.size(3)).transpose(1, 2)
        return y.reshape(len(x), -1, y.size(3), int(y.shape[-1]))
