# SPDX-License-Identifier: MIT
"""swap and merge on the same net, in either order."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap import merge
from opswap.models import multi_branch
from step import outputs_and_gradients

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def net(seed: int) -> nn.Module:
    return multi_branch().double().eval()


def _input() -> Tensor:
    return torch.randn(2, 3, 32, 32, dtype=torch.float64)


def _assert_same_step(actual: nn.Module, expected: nn.Module, x: Tensor) -> None:
    """The output and the gradient of the input; those of parameters lie in other tensors."""
    for training in (True, False):
        ours, theirs = (outputs_and_gradients(m.train(training), x)[:2] for m in (actual, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_merged_net_is_swapped(net: nn.Module) -> None:
    merged = copy.deepcopy(net)
    merged.branches = merge.branches(net.branches)
    swapped = opswap.swap(merged)
    report = opswap.report(swapped)
    assert {s.rule for s in report.swapped if s.path.startswith("branches.")} >= {"batch_norm"}
    kept = {s.path for s in report.kept if s.rule != "conv2d"}  # some sizes are torch's, on some CPUs
    assert not kept and not any(s.path.startswith("branches") for s in report.kept)  # nothing of opswap's own
    _assert_same_step(swapped, net, _input())
    for own, branch in zip(swapped.branches.split_back(), net.branches, strict=True):
        assert not opswap.report(own).swapped
        assert own.state_dict().keys() == branch.state_dict().keys()


def test_a_swapped_net_is_merged(net: nn.Module) -> None:
    swapped = opswap.swap(copy.deepcopy(net))
    swapped.branches = merge.branches(swapped.branches)
    _assert_same_step(swapped, net, _input())
