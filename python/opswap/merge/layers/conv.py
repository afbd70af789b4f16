# SPDX-License-Identifier: MIT
"""Convolutions of N branches as one grouped convolution, or as one wide one of a shared input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layer import Layer

__all__ = ["BranchConv", "BranchConvTranspose"]

_FUNCTIONS = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
    nn.ConvTranspose1d: F.conv_transpose1d,
    nn.ConvTranspose2d: F.conv_transpose2d,
    nn.ConvTranspose3d: F.conv_transpose3d,
}


class BranchConv(Layer):
    """N convolutions: weight (N * out_channels, in_channels / groups, *kernel), bias (N * out_channels)."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.function = _FUNCTIONS[type(first)]
        self.input_dims = first.weight.dim()
        self.stride, self.padding, self.dilation = first.stride, first.padding, first.dilation
        self.groups, self.padding_mode = first.groups, first.padding_mode
        self.in_channels, self.out_channels = first.in_channels, first.out_channels
        self.border = tuple(first._reversed_padding_repeated_twice)
        self.join(modules, "weight", "bias")

    @property
    def wide_shared(self) -> bool:
        return self.groups == 1

    @property
    def dense_elements(self) -> int:
        return self.weight.numel() * self.branches if self.groups == 1 else 0

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self.border, mode=self.padding_mode), 0
        return self.function(x, weight, bias, self.stride, padding, self.dilation, groups)

    def wide(self, x: Tensor, shared: bool = False, dense: bool = False) -> Tensor:
        if dense:
            return self._convolve(x, self._block_diagonal(), self.bias, 1)
        return self._convolve(x, self.weight, self.bias, self.groups * (1 if shared else self.branches))

    def each(self, xs: Sequence[Tensor]) -> list[Tensor]:
        tensors = zip(xs, self.pieces(self.weight), self.pieces(self.bias), strict=True)
        return [self._convolve(x, weight, bias, self.groups) for x, weight, bias in tensors]

    def _block_diagonal(self) -> Tensor:
        """(N * out, N * in, *kernel), zero where the input is another branch's."""
        n, kernel = self.branches, self.weight.shape[2:]
        blocks = self.weight.unflatten(0, (n, self.out_channels)).flatten(3)
        own = torch.eye(n, dtype=blocks.dtype, device=blocks.device).view(n, 1, n, 1, 1)
        whole = blocks.unsqueeze(2) * own
        return whole.reshape(n * self.out_channels, n * self.in_channels, *kernel)

    def extra_repr(self) -> str:
        sizes = f"{self.branches} x ({self.in_channels}, {self.out_channels})"
        return f"{sizes}, stride={self.stride}, groups={self.groups}"


class BranchConvTranspose(Layer):
    """N transposed convolutions: weight (N * in_channels, out_channels / groups, *kernel)."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.function = _FUNCTIONS[type(first)]
        self.input_dims = first.weight.dim()
        self.stride, self.padding, self.dilation = first.stride, first.padding, first.dilation
        self.output_padding, self.groups = first.output_padding, first.groups
        self.join(modules, "weight", "bias")

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        return self.function(
            x, weight, bias, self.stride, self.padding, self.output_padding, groups, self.dilation
        )

    def wide(self, x: Tensor, shared: bool = False, dense: bool = False) -> Tensor:
        return self._convolve(x, self.weight, self.bias, self.groups * self.branches)

    def each(self, xs: Sequence[Tensor]) -> list[Tensor]:
        tensors = zip(xs, self.pieces(self.weight), self.pieces(self.bias), strict=True)
        return [self._convolve(x, weight, bias, self.groups) for x, weight, bias in tensors]
