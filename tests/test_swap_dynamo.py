# SPDX-License-Identifier: MIT
"""The rules on the graphs of torch.compile: what a module's own graph cannot hold, a compiled one does."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib import metadata

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.models import ShuffleNetV2
from opswap.swap.rules import DEFAULT
from spellings import Split, Wrapped, by_size
from step import assert_equal, outputs_and_gradients


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def kernels() -> int:
    return sum(opswap.stats()["kernel"].values())


def rules_of(backend: object) -> list[str]:
    return [s.rule for report in backend.reports for s in report.swapped]


class HardToCapture(nn.Module):
    """Makes a module in its forward and loops over a length: no graph of one module holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Split(), Split()])

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            for block in self.blocks:
                x = block(x)
        return nn.AvgPool2d(2)(x)


def test_training_step_is_bit_equal() -> None:
    stock = ShuffleNetV2((1, 2, 1), (24, 48, 96, 192, 64), 10)
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend, fullgraph=True)
    x = torch.randn(2, 3, 32, 32)
    opswap.reset_stats()
    assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
    assert sorted(rules_of(backend)) == ["cat_channel_shuffle"] * 3 + [
        "cat_channel_shuffle_split",
        "max_pool2d",
    ]
    assert kernels() == 2 * 5
    sites = backend.reports[0].swapped
    assert all("shufflenetv2.py:" in s.source for s in sites)
    assert {s.path.split(".")[0] for s in sites} == {"stage2", "stage3", "stage4", "maxpool"}


def test_inductor_inside() -> None:
    stock = nn.Sequential(Split(), Split())
    backend = opswap.dynamo_backend("inductor", exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend, fullgraph=True)
    x = torch.randn(2, 12, 4, 8)
    opswap.reset_stats()
    ours = outputs_and_gradients(compiled, x)
    assert kernels() == 4 and len(rules_of(backend)) == 2
    for a, b in zip(ours, outputs_and_gradients(stock, x), strict=True):
        torch.testing.assert_close(a, b)


def test_what_swap_cannot_capture() -> None:
    stock = HardToCapture()
    assert not [s for s in opswap.scan(stock).swapped if s.rule == "cat_channel_shuffle_split"]
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend)
    x = torch.randn(2, 12, 4, 8)
    assert_equal(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
    assert "cat_channel_shuffle_split" in rules_of(backend)


def test_sizes_are_those_of_the_graph() -> None:
    stock = Wrapped(by_size)
    backend = opswap.dynamo_backend(exact=True)
    compiled = torch.compile(copy.deepcopy(stock), backend=backend, dynamic=False)
    for batch in (2, 5):
        x = torch.randn(batch, 12, 4, 8)
        assert torch.equal(compiled(x), stock(x))
    assert rules_of(backend) == ["channel_shuffle"] * 2


def test_dynamic_sizes_stay_right() -> None:
    stock = Wrapped(by_size)
    compiled = torch.compile(copy.deepcopy(stock), backend=opswap.dynamo_backend(exact=True), dynamic=True)
    for batch in (2, 5):
        x = torch.randn(batch, 12, 4, 8)
        assert torch.equal(compiled(x), stock(x))


def test_rules_and_inner_can_be_chosen() -> None:
    graphs = []

    def inner(module: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(module)
        return module.forward

    backend = opswap.dynamo_backend(inner, rules=[r for r in DEFAULT if r.name == "max_pool2d"])
    torch.compile(Wrapped(by_size), backend=backend)(torch.randn(2, 12, 4, 8))
    assert len(graphs) == 1 and not rules_of(backend)
    with pytest.raises(TypeError, match="inner must be a backend's name or a callable, got int"):
        opswap.dynamo_backend(3)


def test_the_name_of_the_backend() -> None:
    known = [e for e in metadata.entry_points(group="torch_dynamo_backends") if e.name == "opswap"]
    if not known:
        pytest.skip("opswap is not installed, so that torch does not know its entry points")
    x = torch.randn(2, 12, 4, 8)
    stock = Wrapped(by_size)
    opswap.reset_stats()
    compiled = torch.compile(copy.deepcopy(stock), backend="opswap")
    x = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(compiled(x), stock(x))
    assert kernels() == 1
