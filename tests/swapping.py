# SPDX-License-Identifier: MIT
"""Swap a copy of a model exactly, and compare a step of both."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import opswap
from step import assert_equal, outputs_and_gradients

__all__ = ["images", "same", "swapped"]


def images(*size: int) -> Tensor:
    return torch.randn(size or (2, 12, 4, 8))


def swapped(stock: nn.Module, **options: object) -> nn.Module:
    return opswap.swap(copy.deepcopy(stock), **{"exact": True, "strict": True, **options})


def same(model: nn.Module, stock: nn.Module, x: Tensor | None = None) -> None:
    x = images() if x is None else x
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
