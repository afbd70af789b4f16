# SPDX-License-Identifier: MIT
"""Layers with a slope a channel, and modules that stay one a branch."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from .layer import Layer

__all__ = ["BranchPReLU", "Separate"]


class BranchPReLU(Layer):
    """N PReLUs, of one slope or one a channel each: weight (N * num_parameters)."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        self.join(modules, "weight")

    def wide(self, x: Tensor, shared: bool = False, dense: bool = False) -> Tensor:
        return F.prelu(x, self.weight.repeat_interleave(x.shape[1] // self.weight.numel()))

    def each(self, xs: Sequence[Tensor]) -> list[Tensor]:
        return [F.prelu(x, weight) for x, weight in zip(xs, self.pieces(self.weight), strict=True)]


class Separate(nn.ModuleList):
    """Copies of N modules that are not merged and run one after another."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(copy.deepcopy(m) for m in modules)
        self.training = modules[0].training
