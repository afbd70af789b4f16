# SPDX-License-Identifier: MIT
"""A model with a user's code below a child, for tests of code that comes after the swap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap.capture.later_code import LaterCode
from swapping import images

__all__ = [
    "Child",
    "Keeper",
    "Own",
    "Parent",
    "compiled",
    "count_looks",
    "patch",
    "runs",
    "shuffle",
    "writer",
]


def shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.size()
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class Keeper:
    def __call__(self, x: Tensor) -> Tensor:
        return x


class Own(nn.Module):
    """A user's module below the called child."""

    callback: Any = None
    calls = 1000

    def __init__(self) -> None:
        super().__init__()
        self.function: Any = None
        self.keeper = Keeper()
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        type(self).calls += 1
        for call in (self.callback, self.function, self.keeper):
            x = x if call is None else call(x)
        return self.finish(x)

    def finish(self, x: Tensor) -> Tensor:
        return x if self.shift is None else x + 0

    @property
    def shift(self) -> Any:
        return None


class Child(nn.Sequential):
    pass


class Parent(nn.Module):
    """Reads `groups` after the child has run."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = 2
        self.first = nn.Conv2d(12, 12, 1)
        below = Child(nn.ReLU(), Own(), nn.Sequential())
        self.child = nn.Sequential(nn.Conv2d(12, 12, 3), below, nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        y = self.child(self.first(x))
        return shuffle(y, 2) * self.groups


def writer(model: Parent) -> Callable[[Tensor], Tensor]:
    def write(x: Tensor) -> Tensor:
        model.groups = 6 - model.groups
        return x

    return write


def patch(module: nn.Module, name: str, write: Callable[[Tensor], Tensor]) -> None:
    old = getattr(module, name)
    setattr(module, name, lambda x, *rest: old(write(x), *rest))


def runs(model: nn.Module, name: str = "Parent") -> bool:
    """True if the parent's generated code runs."""
    opswap.reset_stats()
    model(images())
    return name not in opswap.stats()["original"]


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[LaterCode]:
    """Gets an entry each time that the modules are looked at anew."""
    looks: list[LaterCode] = []
    look = LaterCode._look

    def counted(self: LaterCode, *args: Any) -> None:
        looks.append(self)
        look(self, *args)

    monkeypatch.setattr(LaterCode, "_look", counted)
    return looks


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")
