# SPDX-License-Identifier: MIT
"""Convolutions of N branches as one: grouped, or wide for a shared input, or in one of several other ways."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...functional import grouped_linear
from ..costs import Choice, Site, recorded_choice
from ..forms import channels_innermost
from ..recent import Recent
from .layer import RECORDED, Layer

__all__ = ["BranchConv", "BranchConvTranspose"]

_FUNCTIONS = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
    nn.ConvTranspose1d: F.conv_transpose1d,
    nn.ConvTranspose2d: F.conv_transpose2d,
    nn.ConvTranspose3d: F.conv_transpose3d,
}


class _Convolution(Layer):
    """N convolutions of either direction: the first dimension of weight and bias has the branches one after another."""

    options = ("stride", "padding", "dilation")

    def __init__(self, modules: Sequence[nn.Module], *options: str) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.function = _FUNCTIONS[type(first)]
        self.input_dims = first.weight.dim()
        for name in ("in_channels", "out_channels", "stride", "padding", "dilation", "groups", *options):
            setattr(self, name, getattr(first, name))
        self.join(modules, "weight", "bias")

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        raise NotImplementedError

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        groups = self.groups if mode == "shared" else self.groups * self.branches
        return self._convolve(x, self.weight, self.bias, groups)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        tensors = zip(self.pieces(self.weight), self.pieces(self.bias), strict=True)
        return [partial(self._convolve, weight=w, bias=b, groups=self.groups) for w, b in tensors]

    def extra_repr(self) -> str:
        sizes = f"{self.branches} x ({self.in_channels}, {self.out_channels})"
        return (
            f"{sizes}, kernel_size={tuple(self.weight.shape[2:])}, stride={self.stride}, groups={self.groups}"
        )


class BranchConv(_Convolution):
    """N convolutions: weight (N * out_channels, in_channels / groups, *kernel), bias (N * out_channels).

    ways: "chunks" runs one branch after another; "product", for 1 x 1 kernels, a batched matrix product. RECORDED
    uses what `costs` has for the input's sizes.
    choices: what was taken so, by those sizes, the latest ones alone.
    """

    options = (*_Convolution.options, "padding_mode")

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules, "padding_mode")
        self.border = tuple(modules[0]._reversed_padding_repeated_twice)
        self.choices: Recent[tuple[Any, ...], tuple[Site, Choice]] = Recent()

    @property
    def wide_shared(self) -> bool:
        return self.groups == 1

    @property
    def ways(self) -> tuple[str, ...]:
        if self.groups != 1:
            return ()
        return ("chunks", *["product"] * self._is_pointwise)

    @property
    def _is_pointwise(self) -> bool:
        """Every pixel of the result depends on the same one of the input alone."""
        padded = any(self.padding) if isinstance(self.padding, tuple) else False
        return self.weight[0, 0].numel() == 1 and set(self.stride) == {1} and not padded

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self.border, mode=self.padding_mode), 0
        return self.function(x, weight, bias, self.stride, padding, self.dilation, groups)

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        if mode == RECORDED:
            mode = self._recorded(x)
        if mode == "chunks":
            chunks = zip(self.branch_calls(), x.chunk(self.branches, 1), strict=True)
            return torch.cat([call(chunk) for call, chunk in chunks], 1)
        return self._product(x) if mode == "product" else super().wide(x, mode)

    def _recorded(self, x: Tensor) -> str:
        if not self.ways or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return "wide"
        key = (x.shape, channels_innermost(x), torch.is_grad_enabled(), torch.get_num_threads())
        found = self.choices.look_up(key)
        if found is None:
            site = Site(
                self.weight[0, 0].numel(),
                self.in_channels,
                self.out_channels,
                self.branches,
                x.shape[0],
                math.prod(x.shape[2:]),
                *key[1:],
            )
            found = site, recorded_choice(site, self.ways)
            self.choices.add(key, found)
        return found[1].way

    def _product(self, x: Tensor) -> Tensor:
        sizes = self.branches, self.out_channels
        weight = self.weight.view(*sizes, self.in_channels)
        bias = None if self.bias is None else self.bias.view(sizes)
        if channels_innermost(x):
            pixels = x.movedim(1, -1)
            rows = pixels.flatten(0, -2).unflatten(1, (self.branches, self.in_channels))
            output = grouped_linear(rows, weight, bias).flatten(1)
            return output.view(*pixels.shape[:-1], output.shape[1]).movedim(-1, 1)
        columns = x.unflatten(1, (self.branches, self.in_channels)).flatten(3)
        if len(columns) != 1:
            output = torch.matmul(weight, columns)
            # Under autocast the product is of a lower dtype, which a convolution's bias does not raise.
            output = output if bias is None else output + bias.unsqueeze(2).to(output.dtype)
        elif bias is None:
            output = torch.bmm(weight, columns[0])
        else:
            output = torch.baddbmm(bias.unsqueeze(2), weight, columns[0])
        return output.view(x.shape[0], self.weight.shape[0], *x.shape[2:])


class BranchConvTranspose(_Convolution):
    """N transposed convolutions: weight (N * in_channels, out_channels / groups, *kernel)."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules, "output_padding")

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        return self.function(
            x, weight, bias, self.stride, self.padding, self.output_padding, groups, self.dilation
        )
