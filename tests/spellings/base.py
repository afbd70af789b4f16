# SPDX-License-Identifier: MIT
"""What a spelling is, and the modules around the code under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SPLIT, CAT, PLAIN = "cat_channel_shuffle_split", "cat_channel_shuffle", "channel_shuffle"
IDENTITY, PERMUTATION = "identity", "channel_permutation"


@dataclass(frozen=True)
class Spelling:
    """A model, the shape it takes, and the rules that must apply (none for a trap).

    strided: the stock model hands gradients that are not dense to its normalisations, which then round otherwise.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    rules: tuple[str, ...]
    strided: bool = False

    def __repr__(self) -> str:
        return self.name


class Wrapped(nn.Module):
    """conv -> body -> conv, so that gradients flow through whatever is under test."""

    def __init__(self, body: Callable[[Tensor], Tensor], channels: int = 12, dims: int = 2) -> None:
        super().__init__()
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
        self.before = conv(channels, channels, 3, padding=1)
        self.after = conv(channels, channels, 3, padding=1)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.body(self.before(x)))


class Joined(nn.Module):
    """Two branches, joined by torch.cat, then the body."""

    def __init__(self, body: Callable[[Tensor], Tensor], channels: int = 12, axis: str = "dim") -> None:
        super().__init__()
        self.left = nn.Conv2d(channels, channels // 2, 3, padding=1)
        self.right = nn.Conv2d(channels, channels // 2, 3, padding=1)
        self.after = nn.Conv2d(channels, channels, 3, padding=1)
        self.body, self.axis = body, axis

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.left(x), self.right(x)]
        if self.axis == "dim":
            x = torch.cat(parts, dim=1)
        elif self.axis == "axis":
            x = torch.concat(tuple(parts), axis=1)
        else:
            x = torch.cat(parts, 1)
        return self.after(self.body(x))


def whole(body: Callable[[], nn.Module], rules: tuple[str, ...], name: str) -> Spelling:
    """A spelling on images of 12 channels."""
    return Spelling(name, body, (2, 12, 4, 8), rules)


def wrapped(body: Callable[[Tensor], Tensor], rule: str = PLAIN, name: str = "") -> Spelling:
    """A function of one tensor, between two convolutions."""
    name = name or getattr(body, "__name__", type(body).__name__)
    return whole(lambda: Wrapped(body), (rule,), f"plain-{name}")


def joined(body: Callable[[Tensor], Tensor], axis: str = "dim") -> Spelling:
    """A function of what torch.cat returns."""
    name = getattr(body, "__name__", type(body).__name__)
    return whole(lambda: Joined(body, axis=axis), (CAT,), f"cat-{axis}-{name}")
