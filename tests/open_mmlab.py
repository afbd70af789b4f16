# SPDX-License-Identifier: MIT
"""Networks that are written as OpenMMLab's: one module of convolution, norm and activation, whose order is a text.

Not in a test file, whose assertions pytest rewrites.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

__all__ = ["Net"]


class Module(nn.Module, metaclass=ABCMeta):
    """Their base is an abstract class."""


def folded(norm: nn.BatchNorm2d, conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Convolution and BatchNorm of frozen statistics in one."""
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    weight = conv.weight * scale.reshape(-1, 1, 1, 1)
    return F.conv2d(
        x, weight, norm.bias - norm.running_mean * scale, conv.stride, conv.padding, 1, conv.groups
    )


class Unit(Module):
    """Convolution, BatchNorm and ReLU in the order that is asked for; a frozen BatchNorm may be folded."""

    fold: Callable[..., Tensor] | None

    def __init__(
        self, channels: int, kernel: int, groups: int = 1, act: bool = True, fold: bool = False
    ) -> None:
        super().__init__()
        self.order = ("conv", "norm", "act")
        self.conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=groups, bias=False)
        self.norm_name, self.with_act, self.with_norm = "bn", act, True
        self.add_module(self.norm_name, nn.BatchNorm2d(channels))
        self.fold = folded if fold else None
        if act:
            self.activate = nn.ReLU(inplace=True)

    @property
    def norm(self) -> nn.Module | None:
        if self.norm_name:
            return getattr(self, self.norm_name)
        return None

    def forward(self, x: Tensor, activate: bool = True, norm: bool = True) -> Tensor:
        place = 0
        while place < len(self.order):
            step = self.order[place]
            if step == "conv":
                last = place + 1 >= len(self.order)
                if not last and norm and not self.norm.training and self.fold is not None:
                    self.conv.forward = partial(self.fold, self.norm, self.conv)
                    place += 1
                    x = self.conv(x)
                    del self.conv.forward
                else:
                    x = self.conv(x)
            elif step == "norm" and norm and self.with_norm:
                x = self.norm(x)
            elif step == "act" and activate and self.with_act:
                x = self.activate(x)
            place += 1
        return x


class Block(Module):
    def __init__(self, channels: int, fold: bool) -> None:
        super().__init__()
        half = channels // 2
        self.branch = nn.Sequential(
            Unit(half, 1, fold=fold),
            Unit(half, 3, half, act=False, fold=fold),
            Unit(half, 1, fold=fold),
        )
        self.checkpoints = False

    def forward(self, x: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            half = x.shape[1] // 2
            y = torch.cat((x[:, :half], self.branch(x[:, half:])), dim=1)
            n, c, h, w = y.size()
            assert c % 2 == 0, "channels must be divisible by groups"
            y = torch.transpose(y.view(n, 2, c // 2, h, w), 1, 2).contiguous()
            return y.view(n, -1, h, w)

        if self.checkpoints and x.requires_grad:
            return torch.utils.checkpoint.checkpoint(inner, x)
        return inner(x)


class Net(Module):
    """Its blocks have names, by which the forward finds them."""

    def __init__(self, fold: bool = False) -> None:
        super().__init__()
        self.stem = Unit(16, 3, fold=fold)
        self.names = []
        for i in range(2):
            self.names.append(f"block{i}")
            self.add_module(f"block{i}", Block(16, fold))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for name in self.names:
            x = getattr(self, name)(x)
        return x
