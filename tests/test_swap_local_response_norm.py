# SPDX-License-Identifier: MIT
"""swap on F.local_response_norm, torch's function and module, as in AlexNet."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from counted import kernels
from spellings.guards import Only
from step import assert_equal, outputs_and_gradients

SPELLINGS = {
    "module": nn.Sequential(nn.LocalResponseNorm(5, alpha=0.3, k=2)),
    "function": Only(lambda x: F.local_response_norm(x, size=5, k=2.0)),
    "an even size": Only(lambda x: F.local_response_norm(x, 4, 0.2, 0.5)),
    "more than all channels": Only(lambda x: F.local_response_norm(x, 47)),
}


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", SPELLINGS)
def test_bit_equal(name: str, memory_format: torch.memory_format) -> None:
    stock = copy.deepcopy(SPELLINGS[name])
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
    assert [(s.rule, s.exact) for s in opswap.report(model).swapped] == [("local_response_norm", True)]
    x = torch.randn(2, 23, 32, 31).contiguous(memory_format=memory_format)
    for training in (True, False):
        opswap.reset_stats()
        ours = outputs_and_gradients(model.train(training), x)
        assert kernels() == 2 and not opswap.stats()["reference"]
        assert_equal(ours, outputs_and_gradients(stock.train(training), x))
    assert model(x).stride() == stock(x).stride()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.randn(2, 8, 16, 16), "32768 elements"),
        (torch.randn(2, 23, 32, 31).double(), "float64"),
        (torch.randn(23, 64, 31), ""),
    ],
)
def test_what_stays_torchs(x: Tensor, reason: str) -> None:
    stock = SPELLINGS["module"]
    model = opswap.swap(copy.deepcopy(stock))
    opswap.reset_stats()
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
    assert not kernels()
    (outcome,) = opswap.explain(model, x).outcomes
    assert not outcome.ran and reason in outcome.reason


@pytest.mark.parametrize("size", [0, -1, 2.0, torch.tensor(3)], ids=str)
def test_strange_sizes_stay_torchs(size: object) -> None:
    report = opswap.scan(Only(lambda x: F.local_response_norm(x, size)))
    assert not report.swapped


def test_a_function_set_in_its_place_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opswap.swap(copy.deepcopy(SPELLINGS["function"]))
    monkeypatch.setattr(F, "local_response_norm", lambda x, **_: x + 1)
    x = torch.randn(2, 23, 32, 31)
    assert torch.equal(model(x), x + 1)
