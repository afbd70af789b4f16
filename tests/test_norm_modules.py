# SPDX-License-Identifier: MIT
"""BatchNormAct1d, 2d, 3d: torch's BatchNorm and an activation under one roof, for everything that looks at it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import opswap
from step import outputs_and_gradients
from twins import twins

CASES = [
    (opswap.nn.BatchNormAct1d, nn.BatchNorm1d, (5, 6)),
    (opswap.nn.BatchNormAct1d, nn.BatchNorm1d, (5, 6, 7)),
    (opswap.nn.BatchNormAct2d, nn.BatchNorm2d, (3, 6, 5, 4)),
    (opswap.nn.BatchNormAct3d, nn.BatchNorm3d, (3, 6, 2, 5, 4)),
]
ACTIVATIONS = {None: nn.Identity, "relu": nn.ReLU, "relu6": nn.ReLU6, "hardswish": nn.Hardswish}
SETTINGS = [
    {},
    {"momentum": None},
    {"affine": False},
    {"track_running_stats": False},
    {"eps": 0.1, "momentum": 0.5},
]


def close(ours: list[Tensor | None], theirs: list[Tensor | None]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def pair(
    cls: type, torch_cls: type, activation: str | None, **options: object
) -> tuple[nn.Module, nn.Module]:
    """One of ours, and torch's BatchNorm with the activation behind it, with equal random parameters."""
    ours, norm = cls(6, activation=activation, **options), torch_cls(6, **options)
    for p in ours.parameters():
        nn.init.normal_(p)
    norm.load_state_dict(ours.state_dict())
    return ours, nn.Sequential(norm, ACTIVATIONS[activation]())


@pytest.mark.parametrize(("cls", "torch_cls", "shape"), CASES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_trains_and_evaluates_as_torch(
    cls: type, torch_cls: type, shape: tuple[int, ...], activation: str | None, options: dict[str, object]
) -> None:
    ours, stock = pair(cls, torch_cls, activation, **options)
    for _ in range(3):
        x = 3 * torch.randn(shape) + 1
        close(outputs_and_gradients(ours, x), outputs_and_gradients(stock, x))
    close(list(ours.buffers()), list(stock.buffers()))
    ours.eval(), stock.eval()
    close(outputs_and_gradients(ours, x), outputs_and_gradients(stock, x))
    close(list(ours.buffers()), list(stock.buffers()))


class TestIsABatchNorm:
    def test_kind_and_keys(self) -> None:
        for cls, torch_cls, _ in CASES:
            ours = cls(6)
            assert isinstance(ours, torch_cls)
            assert list(ours.state_dict()) == list(torch_cls(6).state_dict())
            assert [n for n, _ in ours.named_parameters()] == ["weight", "bias"]

    def test_checkpoints_both_ways(self) -> None:
        ours, stock = opswap.nn.BatchNormAct2d(6), nn.BatchNorm2d(6)
        ours(torch.randn(2, 6, 3, 3))
        stock.load_state_dict(ours.state_dict(), strict=True)
        fresh = opswap.nn.BatchNormAct2d(6)
        fresh.load_state_dict(stock.state_dict(), strict=True)
        x = torch.randn(2, 6, 3, 3)
        assert torch.equal(fresh.eval()(x), ours.eval()(x))

    def test_frozen(self) -> None:
        ours, stock = pair(opswap.nn.BatchNormAct2d, nn.BatchNorm2d, "relu")
        for m in (ours, stock):
            m.eval().requires_grad_(False)
        before = [b.clone() for b in ours.buffers()]
        x = torch.randn(2, 6, 3, 3)
        close(outputs_and_gradients(ours, x), outputs_and_gradients(stock, x))
        assert all(torch.equal(a, b) for a, b in zip(before, ours.buffers(), strict=True))
        assert all(p.grad is None for p in ours.parameters())

    def test_moving_average(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 6, 1), opswap.nn.BatchNormAct2d(6))
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        model(torch.randn(2, 3, 4, 4))
        average.update_parameters(model)
        assert torch.equal(average.module[1].running_mean, model[1].running_mean)

    def test_factory_arguments(self) -> None:
        ours = opswap.nn.BatchNormAct2d(6, dtype=torch.float64, device="meta")
        assert ours.weight.dtype == torch.float64 and ours.weight.is_meta

    def test_repr(self) -> None:
        text = repr(opswap.nn.BatchNormAct2d(6, momentum=None, activation="relu6"))
        assert text.startswith("BatchNormAct2d(") and "momentum=None" in text and "activation='relu6'" in text


class TestCopies:
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_deepcopy_and_pickle(self, activation: str | None) -> None:
        ours = opswap.nn.BatchNormAct2d(6, activation=activation)
        x = torch.randn(2, 6, 3, 3)
        ours(x)
        for twin in twins(ours):
            assert twin.activation == activation and torch.equal(twin.eval()(x), ours.eval()(x))

    def test_compile_and_export(self) -> None:
        ours, stock = pair(opswap.nn.BatchNormAct2d, nn.BatchNorm2d, "relu")
        x = torch.randn(2, 6, 3, 3)
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        close(outputs_and_gradients(compiled, x), outputs_and_gradients(stock, x))
        close(list(ours.buffers()), list(stock.buffers()))
        program = torch.export.export(ours.eval(), (x,))
        torch.testing.assert_close(program.module()(x), ours(x))


class TestSyncBatchNorm:
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_conversion_keeps_the_activation(self, activation: str | None) -> None:
        model = nn.Sequential(nn.Conv2d(3, 6, 1), opswap.nn.BatchNormAct2d(6, activation=activation))
        nn.init.normal_(model[1].weight)
        x = 4 * torch.randn(4, 3, 5, 5)
        model(x)
        expected = model.eval()(x)
        weight = model[1].weight
        converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        assert type(converted[1]) is nn.SyncBatchNorm and converted[1].weight is weight
        twice = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(converted))
        for m in (converted, twice, pickle.loads(pickle.dumps(converted))):
            torch.testing.assert_close(m(x), expected)
            assert list(m.state_dict()) == list(model.state_dict())

    def test_of_the_module_itself(self) -> None:
        ours = opswap.nn.BatchNormAct2d(6).eval()
        x = torch.randn(2, 6, 3, 3)
        torch.testing.assert_close(nn.SyncBatchNorm.convert_sync_batchnorm(ours)(x), ours(x))

    def test_other_modules_get_no_hook(self) -> None:
        block = nn.Sequential()
        block.add_module("act", nn.ReLU())
        norm = nn.BatchNorm2d(6)
        norm.add_module("act", nn.ReLU())
        assert not block._forward_hooks and not norm._forward_hooks


class TestBadArguments:
    def test_activation(self) -> None:
        with pytest.raises(ValueError, match="'selu'"):
            opswap.nn.BatchNormAct2d(6, activation="selu")

    def test_dimensions(self) -> None:
        with pytest.raises(ValueError, match="expected 4D input"):
            opswap.nn.BatchNormAct2d(6)(torch.randn(2, 6, 3))

    def test_one_value_a_channel(self) -> None:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            opswap.nn.BatchNormAct2d(6)(torch.randn(1, 6, 1, 1))
