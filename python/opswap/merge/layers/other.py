# SPDX-License-Identifier: MIT
"""Layers with a slope per channel, global max pools, and modules that stay one per branch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from ...functional import adaptive_max_pool2d
from .layer import Layer

__all__ = ["BranchAdaptiveMaxPool2d", "BranchPReLU", "Unmerged"]


class BranchPReLU(Layer):
    """N PReLUs, of one slope or one per channel each: weight (N * num_parameters)."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        self.join(modules, "weight")

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        return F.prelu(x, self.weight.repeat_interleave(x.shape[1] // self.weight.numel()))

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        return [partial(F.prelu, weight=weight) for weight in self.pieces(self.weight)]


class BranchAdaptiveMaxPool2d(nn.AdaptiveMaxPool2d):
    """One for all branches; to a size of 1, planes are read by opswap's kernel, which finds the same elements."""

    def forward(self, input: Tensor) -> Tensor:
        one = self.output_size in (1, (1, 1)) and not self.return_indices
        if one and input.dim() == 4 and input.is_contiguous():
            return adaptive_max_pool2d(input, 1)
        return super().forward(input)


class Unmerged(nn.ModuleList):
    """Copies of N modules that are not merged and run one after another."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(copy.deepcopy(m) for m in modules)
        self.training = modules[0].training
