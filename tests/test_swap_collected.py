# SPDX-License-Identifier: MIT
"""Models that collect features with hooks of their own, put on in the first forward, as those of transformers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import opswap
from spellings import Split
from swapping import images


class Collects(nn.Module):
    """Returns what its blocks return, behind a head that needs the last of it."""

    def __init__(self, lasting: bool = True) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Split(), Split())
        self.head = Split()
        self.lasting = lasting
        self.features: list[Tensor] = []
        self.hooked = False

    def _collect(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.features.append(output)

    def forward(self, x: Tensor) -> Tensor:
        self.features = []
        handles = [] if self.hooked else [b.register_forward_hook(self._collect) for b in self.blocks]
        self.hooked = self.lasting
        self.blocks(x)
        for handle in () if self.lasting else handles:
            handle.remove()
        return self.head(self.features[-1])


@pytest.mark.parametrize("lasting", [True, False])
def test_hooks_that_the_forward_puts_on(lasting: bool) -> None:
    stock = Collects(lasting)
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True, example_inputs=(images(),))
    assert not model.hooked and not any(m._forward_hooks for m in model.modules())
    x = images()
    assert torch.equal(model(x), stock(x))
    assert all(c.holds for c in opswap.verify(Collects(lasting), (x,)).checks)


def test_hooks_that_are_there_already() -> None:
    stock = Collects()
    with torch.no_grad():
        stock(images())
    kept = stock.features
    model = copy.deepcopy(stock)
    before = [len(m.features) for m in (stock, model)]
    with pytest.warns(
        RuntimeWarning, match="without its hooks the model stops on example_inputs with IndexError"
    ):
        opswap.swap(model, exact=True, strict=True, example_inputs=(images(),))
    assert stock.features is kept and [len(m.features) for m in (stock, model)] == before
    x = images()
    assert torch.equal(model(x), stock(x))


def test_a_model_that_does_not_run_raises() -> None:
    with pytest.raises(ValueError, match="does not run on example_inputs"):
        opswap.swap(Collects(), example_inputs=(images(2, 5, 4, 4),))
    stock = Collects()
    with torch.no_grad():
        stock(images())
    with pytest.raises(ValueError, match="does not run on example_inputs"):
        opswap.swap(stock, example_inputs=(images(), images()))
