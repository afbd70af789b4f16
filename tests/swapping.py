# SPDX-License-Identifier: MIT
"""Swap a copy of a model exactly, and compare a step of both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

import opswap
from spellings import Spelling
from step import assert_equal, outputs_and_gradients

__all__ = ["images", "pair", "same", "same_on_every_call", "swapped"]


def images(*size: int) -> Tensor:
    return torch.randn(size or (2, 12, 4, 8))


def swapped(stock: nn.Module, **options: object) -> nn.Module:
    return opswap.swap(copy.deepcopy(stock), **{"exact": True, "strict": True, **options})


@cache
def _analysed(spelling: Spelling) -> tuple[nn.Module, nn.Module]:
    stock = spelling.make()
    return stock, swapped(stock)


def pair(spelling: Spelling) -> tuple[nn.Module, nn.Module]:
    """A stock model and its swapped copy, analysed once for all tests."""
    stock, model = _analysed(spelling)
    return copy.deepcopy(stock), copy.deepcopy(model)


def same(model: nn.Module, stock: nn.Module, x: Tensor | None = None) -> None:
    x = images() if x is None else x
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))


def same_on_every_call(stock: nn.Module, model: nn.Module, reset: Callable[[], None] = lambda: None) -> None:
    """Three calls of each, of the same images; `reset` runs before those of a model."""
    x = images()
    found = []
    for m in (stock, model):
        reset()
        found.append([m(x) for _ in range(3)])
    torch.testing.assert_close(*found)
