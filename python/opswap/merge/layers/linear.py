# SPDX-License-Identifier: MIT
"""Linears of N branches as a GroupedLinear, each with its own number of features if need be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from ...functional import grouped_linear
from ..forms import Form
from .layer import Layer

__all__ = ["BranchLinear"]


class BranchLinear(Layer):
    """N Linears: weight (sum of the out_features, in_features), as `opswap.nn.GroupedLinear` keeps ragged ones."""

    takes = Form.STACKED
    wide_shared = True

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        self.sections = tuple(m.out_features for m in modules)
        self.in_features = modules[0].in_features
        self.join(modules, "weight", "bias")

    @property
    def ragged(self) -> bool:
        return len(set(self.sections)) > 1

    @property
    def gives(self) -> Form:
        return Form.RAGGED if self.ragged else Form.STACKED

    def pieces(self, tensor: Tensor | None) -> Sequence[Tensor | None]:
        return (None,) * self.branches if tensor is None else tensor.split(self.sections)

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        if mode == "shared":
            y = F.linear(x, self.weight, self.bias)
            return y if self.ragged else self._stacked(y.unflatten(-1, (self.branches, self.sections[0])))
        x = x.movedim(1, -2)
        if self.ragged:
            return grouped_linear(x, self.weight, self.bias, self.sections)
        sizes = self.branches, self.sections[0]
        bias = None if self.bias is None else self.bias.view(sizes)
        return self._stacked(grouped_linear(x, self.weight.view(*sizes, self.in_features), bias))

    @staticmethod
    def _stacked(y: Tensor) -> Tensor:
        """From (B, *, N, out) to (B, N, *, out)."""
        return y if y.dim() == 3 else y.movedim(-2, 1)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        tensors = zip(self.pieces(self.weight), self.pieces(self.bias), strict=True)
        return [partial(F.linear, weight=w, bias=b) for w, b in tensors]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.sections}"
