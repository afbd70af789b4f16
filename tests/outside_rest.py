# SPDX-License-Identifier: MIT
"""Forwards that read what is seldom read: metadata of functions, gradients, members of enumerations, lists of torch."""

from __future__ import annotations

import enum
import importlib
import sys
import types
from typing import Any

import torch
from torch import Tensor, nn

from outside import case
from outside_children import CASES, Case, tree
from spellings import by_size

__all__ = ["CASES", "Case"]

SETTINGS = types.ModuleType("opswap_test_rest")
SETTINGS.GROUPS = 2
sys.modules["opswap_test_rest"] = SETTINGS


class Kind(enum.Enum):
    A = 1


Kind.A.groups = 2


def noted(_: Any, n: Any = "2") -> None:
    """2"""


noted.__annotations__["n"] = "2"

case(
    "global",
    lambda s: importlib.import_module("opswap_test_rest").GROUPS,
    lambda m: setattr(SETTINGS, "GROUPS", 3),
)
case("global", lambda s: Kind.A.groups, lambda m: setattr(Kind.A, "groups", 3))
case("global", lambda s: int(noted.__doc__), lambda m: setattr(noted, "__doc__", "3"))
case("global", lambda s: int(noted.__annotations__["n"]), lambda m: noted.__annotations__.update(n="3"))
case(
    "none",
    lambda s: 2 if s.conv.weight.grad is None else 3,
    lambda m: m(torch.zeros(1, 12, 2, 2)).sum().backward(),
)


def _scaled(s: Any, x: Tensor) -> Tensor:
    for p in s.scales:
        x = x * p
    return x


class Scaled(nn.Module):
    """Multiplies by every parameter of a list that is empty at first."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 3, padding=1)
        self.scales = nn.ParameterList()

    def forward(self, x: Tensor) -> Tensor:
        return _scaled(self, by_size(self.conv(x)))


CASES["none"].append(
    Case("none, a list of parameters", Scaled, lambda m: m.scales.append(nn.Parameter(torch.full((1,), 2.0))))
)
tree("none", lambda s, x: by_size(x, 2 if x.grad_fn is None else 3), lambda m: m.requires_grad_(False))
