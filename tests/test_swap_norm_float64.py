# SPDX-License-Identifier: MIT
"""BatchNorms of float64 are torch's, whose kernels are faster there."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from step import outputs_and_gradients
from test_swap_norm import SIZE, Pair, check, close, norms

pytestmark = pytest.mark.usefixtures("one_thread", "recorded_gains")


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("spelling", ["module", "function"])
def test_float64_is_torchs(spelling: str, alone: bool) -> None:
    """The kernels are slower than torch's there; gradients that torch reads wrongly are mended all the same."""

    def forward(m: Pair, x: Tensor) -> Tensor:
        norm = m.norm
        if spelling == "module":
            y = norm(x)
        else:
            y = F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, True)
        return y if alone else F.relu(y)

    stock = Pair(forward).double()
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    x = torch.randn(SIZE, dtype=torch.float64)
    assert norms(model, x) == 0
    reasons = {o.reason for o in opswap.explain(model, x).outcomes if o.rule.startswith("batch_norm")}
    assert any("torch is faster on float64" in r for r in reasons), reasons
    check(model, stock, x)
    assert norms(model.float().train(), torch.randn(8, 6, 16, 16)) == 1


@pytest.mark.parametrize("alone", [True, False])
def test_strided_weights_of_float64(alone: bool) -> None:
    """torch reads such a weight wrongly in channels_last, so that the kernel runs in float64 too."""

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.rand(6, 3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            y = F.batch_norm(x, None, None, self.weights[:, 1], None, True)
            return y if alone else F.relu(y)

    stock = Strided()
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    x = torch.randn(SIZE, dtype=torch.float64)
    expected = outputs_and_gradients(stock, x)
    close(outputs_and_gradients(model, x.contiguous(memory_format=torch.channels_last)), expected)
