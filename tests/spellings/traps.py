# SPDX-License-Identifier: MIT
"""What only looks like a shuffle, or whose meaning a capture would change."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .base import Spelling, Wrapped, whole
from .shuffles import by_size


def mixes_batch(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    return x.reshape(2, b * c // 2, h * w).permute(1, 0, 2).reshape(b, c, h, w)


def mixes_plane(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    return x.transpose(1, 2).reshape(b, c, h, w)


def turns_planes(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    return x.view(b, 2, c // 2, h, w).permute(0, 2, 1, 4, 3).reshape(b, c, h, w)


def looks_inside(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    y = x.view(b, 2, c // 2, h, w).transpose(1, 2).contiguous()
    return y.view(b, c, h, w) * y.mean()


def detached(x: Tensor) -> Tensor:
    return by_size(x.data) + x


def writes_between(x: Tensor) -> Tensor:
    b, c, h, w = x.size()
    y = x.view(b, 2, c // 2, h, w).transpose(1, 2)
    x.mul_(2)
    return y.contiguous().view(b, c, h, w)


def size_of_another(x: Tensor) -> Tensor:
    small = x[:, :6]
    b, c, h, w = small.size()
    return (small + 1).relu().view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w).repeat(1, 2, 1, 1)


def depends_on_data(x: Tensor) -> Tensor:
    return by_size(x) if x.mean() > 0 else x


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = by_size(x)
    return x + y


@torch.no_grad()
def decorated(x: Tensor) -> Tensor:
    return by_size(x)


def without_grad_by_decorator(x: Tensor) -> Tensor:
    return x + decorated(x)


class Doubling(torch.autograd.Function):
    """A shuffle with a gradient of its own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return by_size(x)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return 2 * grad


def own_gradient(x: Tensor) -> Tensor:
    return Doubling.apply(x)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(by_size, x, use_reentrant=False)


def checkpointed_by_reentry(x: Tensor) -> Tensor:
    return checkpoint(by_size, x, use_reentrant=True)


def quietly_without_grad(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    y = by_size(x)
    torch.set_grad_enabled(True)
    return x + y


def draws(x: Tensor) -> Tensor:
    return by_size(x) * random.choice((1.0, 1.0))


def swallows(x: Tensor) -> Tensor:
    try:
        return x if bool(x.sum() > 1e9) else by_size(x)
    except Exception:
        return x


def writes_to_a_slice(x: Tensor) -> Tensor:
    even, odd = x[:, ::2], x[:, 1::2]
    even.mul_(2)
    return torch.cat((even, odd), 1) + x


class WritesInPlace(nn.Module):
    """The halves are views, and a branch begins with an operator that works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(12, 12, 3, padding=1)
        self.branch = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(6, 6, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        y = self.branch(x[:, 1::2])
        return torch.cat((x[:, ::2], y), 1) + x


class ReturnsViews(nn.Module):
    """Its caller may write to the views that it returns."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, ::2], x[:, 1::2]


class WritesToViews(nn.Module):
    """Writes to what `ReturnsViews` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        self.views = ReturnsViews()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        even, _ = self.views(x)
        even.add_(1)
        return x


def repeats_channels(x: Tensor) -> Tensor:
    return x[:, [0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]


def to_number(x: Tensor) -> Tensor:
    return by_size(x)[:, : int(x.size(1))]


class Counting(Wrapped):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class Remembering(Wrapped):
    """Keeps its features in a list."""

    def __init__(self) -> None:
        super().__init__(by_size)
        self.features: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.features.append(x)
        return super().forward(x)


def _trap(body: Callable[[Tensor], Tensor], reason: str) -> tuple[Spelling, str]:
    return whole(lambda: Wrapped(body), (), body.__name__), reason


TRAPS = (
    _trap(mixes_batch, "not a channel shuffle"),
    _trap(mixes_plane, "not a channel shuffle"),
    _trap(turns_planes, "not a channel shuffle"),
    _trap(looks_inside, "an intermediate result is used elsewhere"),
    _trap(detached, ""),
    _trap(writes_between, "may write"),
    _trap(size_of_another, "sizes come from another tensor"),
    _trap(depends_on_data, "control flow"),
    _trap(without_grad, "gradient"),
    _trap(quietly_without_grad, "gradient"),
    _trap(without_grad_by_decorator, "gradient"),
    _trap(own_gradient, "gradient"),
    _trap(checkpointed, "checkpoint(self.block, x)"),
    _trap(checkpointed_by_reentry, "checkpoint(self.block, x)"),
    _trap(draws, "random"),
    _trap(swallows, "catches exceptions"),
    _trap(writes_to_a_slice, "used elsewhere"),
    _trap(repeats_channels, ""),
    _trap(to_number, "pass example_inputs"),
    (whole(WritesInPlace, (), "writes in place"), "may write"),
    (whole(WritesToViews, (), "writes to views"), "may write"),
    (whole(lambda: Counting(by_size), (), "counting"), "'calls'"),
    (whole(Remembering, (), "remembering"), "'features'"),
    (whole(lambda: torch.jit.script(Wrapped(nn.Identity())), (), "scripted"), "ScriptModule"),
    (whole(lambda: torch.fx.symbolic_trace(Wrapped(by_size)), (), "traced"), "GraphModule"),
)
