# SPDX-License-Identifier: MIT
"""Nested, sparse, quantized and MKL-DNN inputs of a swapped model: the stock results, or the stock errors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap.rules import DEFAULT, OPTIONAL
from spellings import Split, by_size
from test_swap_linear import GroupWiseLinear

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore")]


class Shuffle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return by_size(x)


class Index(nn.Module):
    """Permutes 12 channels by a buffer, and by a list in the code."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(12).view(3, 4).t().reshape(-1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.index_select(1, self.order)
        return x if x.layout is not torch.strided else x[:, [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]]


NETS: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU()),
    "pointwise": lambda: nn.Conv2d(12, 24, 1),
    "depthwise": lambda: nn.Conv2d(12, 12, 3, groups=12, padding=1),
    "norm": lambda: nn.BatchNorm2d(12),
    "norm of vectors": lambda: nn.Sequential(nn.BatchNorm1d(12), nn.ReLU()),
    "max pool": lambda: nn.MaxPool2d(2),
    "average pool": lambda: nn.AvgPool2d(2),
    "global pool": lambda: nn.AdaptiveMaxPool2d(1),
    "dropout": lambda: nn.Dropout(0.5),
    "module of torch": lambda: nn.ChannelShuffle(3),
    "shuffle": Shuffle,
    "unit": Split,
    "index": Index,
    "groups": GroupWiseLinear,
    "layers": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.ReLU()),
}


def _nested(layout: torch.layout, *sizes: Sequence[int]) -> Tensor:
    return torch.nested.nested_tensor([torch.randn(*size) for size in sizes], layout=layout)


def _plain(*size: int) -> Tensor:
    return torch.randn(size or (2, 12, 4, 8)).relu()


INPUTS: dict[str, Callable[[], Tensor]] = {
    "images": lambda: _nested(torch.strided, (12, 4, 8), (12, 4, 8)),
    "images of two sizes": lambda: _nested(torch.strided, (12, 4, 8), (12, 6, 8)),
    "rows": lambda: _nested(torch.strided, (4, 12), (5, 12)),
    "short rows": lambda: _nested(torch.strided, (4, 6), (3, 6)),
    "jagged rows": lambda: _nested(torch.jagged, (4, 12), (5, 12)),
    "jagged short rows": lambda: _nested(torch.jagged, (4, 6), (3, 6)),
    "jagged images": lambda: _nested(torch.jagged, (12, 4, 8), (6, 4, 8)),
    "sparse images": lambda: _plain().to_sparse(),
    "sparse images, dense planes": lambda: _plain().to_sparse(2),
    "sparse batch of dense rows": lambda: _plain(8, 4, 6).to_sparse(1),
    "sparse rows": lambda: _plain(4, 12).to_sparse(),
    "compressed rows": lambda: _plain(12, 12).to_sparse_csr(),
    "compressed blocks": lambda: _plain(12, 12).to_sparse_bsr((2, 2)),
    "MKL-DNN": lambda: _plain().to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(_plain(), 0.1, 0, torch.quint8),
}


def _parts(t: Tensor) -> list[Tensor]:
    if t.is_nested:
        return [part.detach() for part in t.unbind()]
    if t.is_quantized:
        return [t.dequantize()]
    return [(t if t.layout is torch.strided else t.to_dense()).detach()]


def _outcome(model: nn.Module, x: Tensor, seed: int) -> tuple[Any, ...]:
    """The kind of the result and its dense parts, or the error."""
    torch.manual_seed(seed)
    try:
        y = model(x)
    except Exception as error:
        return type(error), str(error).splitlines()[0], []
    return type(y), y.layout, _parts(y)


@pytest.mark.parametrize("rules", (None, OPTIONAL + DEFAULT), ids=("default", "all rules"))
@pytest.mark.parametrize("net", NETS)
def test_results_and_errors_are_the_stock_models(net: str, rules: Any) -> None:
    stock, seed = NETS[net](), torch.initial_seed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = opswap.swap(copy.deepcopy(stock), rules=rules)
        for name, make in INPUTS.items():
            x = make()
            for training in (True, False):
                pair = (copy.deepcopy(m).train(training) for m in (stock, model))
                (*kind, parts), (*our_kind, our_parts) = (_outcome(m, x, seed) for m in pair)
                assert our_kind == kind, name
                for ours, theirs in zip(our_parts, parts, strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_some_of_them_run() -> None:
    """So that it is not errors alone that are compared."""
    ran = set()
    for make in NETS.values():
        for name, x in INPUTS.items():
            if _outcome(make(), x(), 0)[2]:
                ran.add(name)
    assert len(ran) >= 5, ran
