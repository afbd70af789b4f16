# SPDX-License-Identifier: MIT
"""Models that are trained for quantisation: their flags, observers and fake quantisation stay what they are."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import opswap
from spellings import SPELLINGS, Shuffle, Spelling, Split, by_size
from step import assert_equal, outputs_and_gradients
from swapping import pair

quantization = pytest.importorskip("torch.ao.quantization")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*torch.ao.quantization.*:DeprecationWarning"),
]


def qat(model: nn.Module) -> nn.Module:
    model.train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    return quantization.prepare_qat(model, inplace=True)


def fakes(model: nn.Module) -> dict[str, nn.Module]:
    return {k: m for k, m in model.named_modules() if isinstance(m, quantization.FakeQuantizeBase)}


def same_training(model: nn.Module, stock: nn.Module, spelling: Spelling) -> None:
    for _ in range(2):
        x = torch.randn(spelling.shape)
        ours, theirs = outputs_and_gradients(model, x), outputs_and_gradients(stock, x)
        if spelling.strided:
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        else:
            assert_equal(ours, theirs)
            assert_equal(list(model.buffers()), list(stock.buffers()))


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_prepared_before_the_swap(spelling: Spelling) -> None:
    stock = qat(spelling.make())
    model = copy.deepcopy(stock)
    before = [(k, id(m), type(m), getattr(m, "qconfig", None)) for k, m in model.named_modules() if k]
    kept = fakes(model)
    opswap.swap(model, exact=True)
    after = [(k, id(m), getattr(m, "qconfig", None)) for k, m in model.named_modules() if k]
    assert after == [(k, i, q) for k, i, _, q in before]
    for name, module in fakes(model).items():
        assert module is kept[name] and "_opswap_record" not in vars(module)
        assert not type(module).__mro__[0].__name__.startswith("Rewritten")
    same_training(model, stock, spelling)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
def test_prepared_after_the_swap(spelling: Spelling) -> None:
    stock, model = map(qat, pair(spelling))
    assert list(fakes(model)) == list(fakes(stock))
    same_training(model, stock, spelling)


def test_normalisations_with_observers_are_reported() -> None:
    stock = qat(nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), Shuffle(2)))
    model = opswap.swap(copy.deepcopy(stock))
    report = opswap.report(model)
    assert "batch_norm_act" not in [s.rule for s in report.swapped]
    assert any("hooks" in s.reason for s in report.kept), str(report)
    x = torch.randn(2, 12, 4, 8)
    for m in (model, stock):
        m(x)
    states = [
        {k: v for k, v in m.state_dict().items() if "min_val" in k or "max_val" in k} for m in (model, stock)
    ]
    assert states[0] and states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key])


class Joins(nn.Module):
    """Joins by torch's module for the purpose, which may hold an observer."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(12, 6, 1), nn.Conv2d(12, 6, 1)
        self.join = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.join.cat([self.left(x), self.right(x)], dim=1))


def test_joined_by_a_float_functional() -> None:
    """The shuffle is taken, the join that may be observed is not."""
    stock = nn.Sequential(Joins(), Split())
    model = opswap.swap(copy.deepcopy(stock), exact=True, strict=True)
    assert [s.rule for s in opswap.report(model).swapped] == [
        "cat_channel_shuffle_split",
        "cat_channel_shuffle",
    ]
    x = torch.randn(2, 12, 4, 8)
    opswap.reset_stats()
    assert_equal(outputs_and_gradients(model, x), outputs_and_gradients(stock, x))
    assert not opswap.stats()["original"]
    observed = []
    for m in (model, stock):
        m[0].join.activation_post_process = quantization.MinMaxObserver()
        observed.append(m(x))
    assert torch.equal(*observed)
    assert torch.equal(*(m[0].join.activation_post_process.max_val for m in (model, stock)))
