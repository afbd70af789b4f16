# SPDX-License-Identifier: MIT
"""swap on BatchNorm: hooks, changes after the swap, and training on two processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import opswap
from processes import train_both
from step import assert_same_error, outputs_and_gradients
from test_swap_norm import NETWORKS, SIZE, check, close, lprnet, norms

pytestmark = pytest.mark.usefixtures("one_thread", "every_rule_applies")


class TestHooks:
    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
    def test_before_and_after_the_swap(self, which: int, kind: str) -> None:
        stock = nn.Sequential(nn.BatchNorm2d(6), nn.ReLU())
        late = opswap.swap(copy.deepcopy(stock))
        early = copy.deepcopy(stock)
        for m in (early, late, stock):
            m.calls = []
            getattr(m[which], f"register_{kind}_hook")(lambda *_, calls=m.calls: calls.append(kind))
        opswap.swap(early)
        (kept,) = opswap.report(early).kept
        assert (kept.path, kept.rule) == ("0", "batch_norm_act") and f"{which} has hooks" in kept.reason
        for model in (early, late):
            check(model, stock, torch.randn(SIZE))
            stock.load_state_dict(late.state_dict())
        assert early.calls == late.calls and len(early.calls) >= 2

    def test_global(self) -> None:
        model = opswap.swap(nn.Sequential(nn.BatchNorm2d(6), nn.ReLU()))
        seen: list[nn.Module] = []
        handle = nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m))
        try:
            model(torch.randn(SIZE))
        finally:
            handle.remove()
        assert seen == [*model, model]


class TestChangesAfterTheSwap:
    def pair(self) -> tuple[nn.Module, nn.Module]:
        stock = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.BatchNorm2d(6))
        return stock, opswap.swap(copy.deepcopy(stock))

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: m[1].eval(),
            lambda m: m[1].requires_grad_(False),
            lambda m: m.requires_grad_(False),
            lambda m: setattr(m[1], "momentum", None),
            lambda m: setattr(m[3], "eps", 0.5),
            lambda m: setattr(m[1], "track_running_stats", False),
            lambda m: m.double(),
            lambda m: m[1].register_parameter("weight", None),
            lambda m: m[3].reset_running_stats(),
            lambda m: setattr(m[1], "training", 1),
        ],
        ids=range(10),
    )
    def test_settings(self, change: Callable[[nn.Module], object]) -> None:
        stock, model = self.pair()
        for m in (stock, model):
            change(m)
        x = torch.randn(SIZE, dtype=stock[0].weight.dtype)
        for _ in range(2):
            ours, theirs = outputs_and_gradients(model, x), outputs_and_gradients(stock, x)
            close(ours, theirs)
        assert norms(model, x) == 2
        close(list(model.buffers()), list(stock.buffers()))

    @pytest.mark.parametrize("index", [1, 2])
    def test_replaced_modules(self, index: int) -> None:
        stock, model = self.pair()
        for m in (stock, model):
            m[index] = nn.Tanh()
        check(model, stock, torch.randn(SIZE))

    def test_container_that_a_forward_walks_through(self) -> None:
        stock = lprnet()
        model = opswap.swap(copy.deepcopy(stock))
        for m in (stock, model):
            m.backbone[2] = nn.LeakyReLU()
            m.backbone.append(nn.Tanh())
        x = torch.randn(2, 3, 24, 94)
        torch.testing.assert_close(model(x), stock(x), rtol=1e-3, atol=1e-4)

    def test_hardtanh_bounds(self) -> None:
        stock = nn.Sequential(nn.BatchNorm2d(6), nn.Hardtanh(0, 6))
        model = opswap.swap(copy.deepcopy(stock))
        for m in (stock, model):
            m[1].max_val = 1
        check(model, stock, 3 * torch.randn(SIZE))

    def test_hardtanh_refuses_bounds_in_the_wrong_order(self) -> None:
        stock = nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.Hardtanh(), nn.Conv2d(6, 6, 1))
        stock[2].max_val = -2.0
        model = opswap.swap(copy.deepcopy(stock))
        for training in (True, False):
            model.train(training)
            assert_same_error(lambda: model(torch.randn(SIZE)), lambda: stock(torch.randn(SIZE)), 0)

    @pytest.mark.parametrize("bad", [torch.randint(9, SIZE), torch.randn(6, 5), torch.randn(4, 7, 5, 5)])
    def test_errors_are_torchs(self, bad: Tensor) -> None:
        stock = nn.Sequential(nn.BatchNorm2d(6), nn.ReLU())
        model = opswap.swap(copy.deepcopy(stock))
        assert_same_error(lambda: model(bad), lambda: stock(bad), 0)

    def test_sync_batch_norm(self) -> None:
        for make, size in NETWORKS.values():
            stock = make().eval()
            x = torch.randn(size)
            converted = nn.SyncBatchNorm.convert_sync_batchnorm(opswap.swap(copy.deepcopy(stock)))
            assert sum(type(m) is nn.SyncBatchNorm for m in converted.modules()) > 5
            torch.testing.assert_close(converted(x), stock(x), rtol=1e-4, atol=1e-5)


def _net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3))


def test_distributed_training(tmp_path: Path) -> None:
    stock, swapped = train_both(tmp_path, _net, (2, 3, 8, 8), 3)
    assert list(swapped) == list(stock)
    close(list(swapped.values()), list(stock.values()))
