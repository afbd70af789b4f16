# SPDX-License-Identifier: MIT
"""The pools as modules: drop-in for torch's, in the formats that torch refuses too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import opswap
from inputs import same_bits
from opswap.nn import AvgPool3dAsPool2d, GlobalMaxPool2d, Pool3dAsPool2d
from twins import twins

MAX = [
    ((1, 3, 3), (1, 1, 1), 0, 1, False, False),
    ((1, 3, 3), (2, 1, 2), (0, 1, 1), (1, 1, 2), True, False),
    ((1, 3, 3), (4, 1, 2), 0, 1, False, True),
    (2, None, 1, 1, True, True),
    ((3, 2, 2), 2, (1, 0, 1), 1, False, False),
]
AVG = [
    ((1, 3, 3), (2, 1, 2), 0, False, True, None),
    ((1, 2, 2), (3, 2, 1), (0, 1, 1), True, False, None),
    (2, None, 1, False, False, 5),
]
PAIRS = [
    *[(nn.MaxPool3d, Pool3dAsPool2d, arguments) for arguments in MAX],
    *[(nn.AvgPool3d, AvgPool3dAsPool2d, arguments) for arguments in AVG],
]


def outputs(module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    result = module(x)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("stock_class,our_class,arguments", PAIRS)
def test_drop_in_for_torchs_modules(
    stock_class: type, our_class: type, arguments: tuple[object, ...]
) -> None:
    stock, ours = stock_class(*arguments), our_class(*arguments)
    made = our_class.from_module(stock.eval())
    assert isinstance(ours, stock_class) and vars(made).keys() == vars(stock).keys()
    assert not made.training and made.extra_repr() == stock.extra_repr() == ours.extra_repr()
    for size in ((3, 8, 9, 10), (2, 3, 6, 7, 8)):
        x = torch.randn(size)
        want = outputs(stock, x)
        for module in (ours, made):
            got = outputs(module, x)
            assert all(same_bits(g, w) for g, w in zip(got, want, strict=True))
            assert all(g.stride() == w.stride() for g, w in zip(got, want, strict=True))
        with opswap.force_reference():
            assert all(torch.allclose(g, w) for g, w in zip(outputs(ours, x), want, strict=True))


@pytest.mark.parametrize("stock_class,our_class,arguments", PAIRS)
def test_channels_last_in_and_out(stock_class: type, our_class: type, arguments: tuple[object, ...]) -> None:
    x = torch.randn(3, 8, 9, 10)
    last = x.contiguous(memory_format=torch.channels_last)
    if stock_class is nn.MaxPool3d:
        with pytest.raises(RuntimeError):
            stock_class(*arguments)(last)
    got = outputs(our_class(*arguments), last)
    for g, w in zip(got, outputs(stock_class(*arguments), x), strict=True):
        assert same_bits(g, w) and g.is_contiguous(memory_format=torch.channels_last)


def modules() -> list[nn.Module]:
    return [
        Pool3dAsPool2d((1, 3, 3), (2, 1, 2)),
        AvgPool3dAsPool2d((1, 2, 2)),
        GlobalMaxPool2d(),
        GlobalMaxPool2d(ties="split", keepdim=False),
    ]


@pytest.mark.parametrize("index", range(len(modules())))
def test_copy_pickle_and_save(index: int) -> None:
    module = modules()[index]
    x = torch.randn(2, 4, 6, 6)
    for other in twins(module):
        assert repr(other) == repr(module) and same_bits(other(x), module(x))
    assert not module.state_dict()


def test_global_pool_equals_the_two_that_it_replaces() -> None:
    x = torch.randn(2, 4, 6, 6)
    assert same_bits(GlobalMaxPool2d()(x), nn.AdaptiveMaxPool2d(1)(x))
    assert same_bits(GlobalMaxPool2d(ties="split", keepdim=False)(x), x.amax((2, 3)))
    assert same_bits(GlobalMaxPool2d(ties="split")(x), x.amax((2, 3), keepdim=True))
    assert repr(GlobalMaxPool2d(ties="split")) == "GlobalMaxPool2d(ties='split', keepdim=True)"
    with pytest.raises(ValueError, match="'both'"):
        GlobalMaxPool2d(ties="both")
