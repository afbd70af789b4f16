# SPDX-License-Identifier: MIT
"""BatchNorms without an activation: small ones are torch's, whose calls cost less."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from counted import kernels_of
from nearness import assert_model_as_near
from opswap.swap.rules import conditions

pytestmark = pytest.mark.usefixtures("one_thread", "recorded_gains")

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
LAST, PLAIN = torch.channels_last, torch.contiguous_format
# (shape of the fewest elements, memory format, dtype)
CASES = [
    ((2, 16, 16, 16), LAST, F32),
    ((2, 16, 16, 16), LAST, BF16),
    ((2, 16, 16, 16), LAST, F16),
    ((2, 16, 16, 16), PLAIN, F32),
    ((2, 16, 16, 16), PLAIN, BF16),
    ((512, 16), PLAIN, F32),
    ((512, 16), PLAIN, F16),
    ((4, 16, 128), PLAIN, F32),
]


class Alone(nn.Module):
    """A BatchNorm, as a module or as a call of the function."""

    def __init__(self, norm: nn.Module, function: bool) -> None:
        super().__init__()
        self.norm, self.function = norm, function

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm
        if not self.function:
            return n(x)
        return F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, self.training)


def make(shape: tuple[int, ...], function: bool, dtype: torch.dtype) -> Alone:
    cls = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    return Alone(cls(shape[1]), function).to(dtype)


def kernels(model: nn.Module, x: Tensor) -> int:
    return kernels_of(model, x, "batch_norm_act")


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize(("shape", "memory_format", "dtype"), CASES)
def test_from_how_many_elements(
    shape: tuple[int, ...], memory_format: torch.memory_format, dtype: torch.dtype, function: bool
) -> None:
    fewest = conditions._FEWEST_ALONE
    assert math.prod(shape) == fewest
    model = opswap.swap(make(shape, function, dtype), strict=True)
    x = torch.randn(shape, dtype=dtype).contiguous(memory_format=memory_format)
    small = x[:, :, 1:] if x.dim() > 2 else x[1:]
    small = small.contiguous(memory_format=memory_format)
    assert kernels(model, x) == 1
    assert kernels(model, small) == 0
    told = {o.reason for o in opswap.explain(model, small).outcomes if o.rule == "batch_norm"}
    assert f"torch is faster on fewer than {fewest} elements: the input has {small.numel()}" in told
    assert kernels(model.eval(), x) == 0


@pytest.mark.parametrize("function", [False, True])
def test_small_ones_equal_stock(function: bool) -> None:
    stock = make((2, 8, 6, 5), function, F32)
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    for _ in range(2):
        x = torch.randn(2, 8, 6, 5)
        assert torch.equal(model(x), stock(x))
    assert all(map(torch.equal, model.state_dict().values(), stock.state_dict().values()))


def images(memory_format: torch.memory_format) -> Tensor:
    return torch.randn(2, 16, 16, 16).contiguous(memory_format=memory_format)


@pytest.mark.parametrize("memory_format", [LAST, PLAIN])
def test_large_ones_train(memory_format: torch.memory_format) -> None:
    stock = make((2, 16, 16, 16), False, F32)
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    assert_model_as_near(model, stock, lambda: (images(memory_format),))
    assert kernels(model, images(memory_format)) == 1


def test_an_activation_lifts_the_limit() -> None:
    """torch calls two operators there."""
    model = opswap.swap(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()), strict=True)
    x = torch.randn(2, 8, 6, 5)
    assert x.numel() < conditions._FEWEST_ALONE
    assert kernels(model, x) == 1


def test_elsewhere() -> None:
    model = opswap.swap(make((2, 8, 6, 5), False, F32), strict=True).to("meta")
    (told,) = opswap.explain(model, torch.empty(2, 8, 6, 5, device="meta")).outcomes
    assert told.reason == "no kernel for meta"
