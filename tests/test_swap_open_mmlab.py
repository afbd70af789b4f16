# SPDX-License-Identifier: MIT
"""Networks that are written as OpenMMLab's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import opswap
from nearness import assert_model_as_near
from open_mmlab import Net
from swapping import images, same


def swapped(fold: bool) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    stock = Net(fold).to(memory_format=torch.channels_last)
    for m in stock.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_()
    return opswap.swap(copy.deepcopy(stock)), stock


def input_of(channels: int = 16) -> Tensor:
    return images(2, channels, 12, 12).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("fold", [False, True])
def test_every_shuffle_and_activation_is_replaced(fold: bool) -> None:
    model, stock = swapped(fold)
    rules = [s.rule for s in opswap.report(model).swapped]
    assert sum("shuffle" in r or r.startswith("index_select") for r in rules) == 2, str(opswap.report(model))
    for training in (True, False):
        assert_model_as_near(model.train(training), stock.train(training), lambda: (input_of(),))


def test_frozen_norms() -> None:
    """Those of one block, of all, and some of one block: with `fold` these are other code."""
    for fold in (False, True):
        for frozen in (lambda n: "block0" in n, lambda n: True, lambda n: n.endswith("branch.0.bn")):
            model, stock = swapped(fold)
            for m in (model, stock):
                for name, part in m.named_modules():
                    if isinstance(part, nn.BatchNorm2d) and frozen(name):
                        part.eval()
            assert_model_as_near(model, stock, lambda: (input_of(),))


def test_exact() -> None:
    stock = Net()
    same(opswap.swap(copy.deepcopy(stock), exact=True), stock, images(2, 16, 12, 12))


def test_frozen_norms_keep_the_fast_forward() -> None:
    """As `norm_eval` of these networks' backbones: the blocks train, their norms do not."""
    model, _ = swapped(False)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    ran = opswap.explain(model, input_of())
    assert all(o.ran == o.calls > 0 for o in ran.outcomes if "shuffle" in o.rule), str(ran)
