# SPDX-License-Identifier: MIT
"""Inference writes a normalisation over the output of the convolution in front of it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from test_swap_norm import SIZE, Pair, check

pytestmark = pytest.mark.usefixtures("one_thread", "every_rule_applies")


class TestInPlace:
    """Inference writes over the convolution's output where nobody else can hold it."""

    def storage(self, model: nn.Module, x: Tensor) -> bool:
        """True where the result lies where the convolution's output lay."""
        outputs: list[int] = []
        plain = type(model[0])._conv_forward

        def remember(self: nn.Conv2d, *args: Tensor) -> Tensor:
            y = plain(self, *args)
            outputs.append(y.data_ptr())
            return y

        type(model[0])._conv_forward = remember
        try:
            return model(x).data_ptr() == outputs[0]
        finally:
            type(model[0])._conv_forward = plain

    def model(self, *after: nn.Module) -> nn.Module:
        return opswap.swap(
            nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), *(after or (nn.ReLU(),)))
        ).eval()

    @pytest.mark.parametrize("after", [nn.ReLU(), nn.Flatten(0, 0)], ids=["activation", "alone"])
    def test_where_nothing_needs_a_gradient(self, after: nn.Module) -> None:
        model, x = self.model(after), torch.randn(SIZE)
        with torch.no_grad():
            assert self.storage(model, x)
        with torch.inference_mode():
            assert self.storage(model, x)
        assert not self.storage(model, x)

    def test_alone_it_equals_torch_up_to_rounding(self) -> None:
        stock = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Tanh())
        x = torch.randn(SIZE)
        stock(x)
        model = opswap.swap(copy.deepcopy(stock.eval()))
        opswap.reset_stats()
        with torch.no_grad():
            torch.testing.assert_close(model(x), stock(x))
            assert opswap.stats()["kernel"] == {"batch_norm_act": 1}
        assert torch.equal(model(x), stock(x))

    @pytest.mark.parametrize("after", [nn.ReLU(), nn.Flatten(0, 0)], ids=["activation", "alone"])
    def test_not_with_a_hook_that_sees_the_output(self, after: nn.Module) -> None:
        model, x = self.model(after), torch.randn(SIZE)
        kept: list[Tensor] = []
        model[0].register_forward_hook(lambda m, args, y: kept.append(y))
        with torch.no_grad():
            model(x)
            assert torch.equal(kept[0], F.conv2d(x, model[0].weight, model[0].bias, padding=1))

    def test_not_where_the_output_is_used_again(self) -> None:
        stock = Pair(lambda m, x: (lambda y: F.relu(m.norm(y)) + y)(m.conv(x)))
        model = opswap.swap(copy.deepcopy(stock))
        assert "inplace=may_overwrite" not in model.opswap_code
        check(model, stock, torch.randn(SIZE))

    def test_input_of_the_model_is_left_alone(self) -> None:
        model = opswap.swap(nn.Sequential(nn.BatchNorm2d(6), nn.ReLU())).eval()
        x = torch.randn(SIZE)
        before = x.clone()
        with torch.no_grad():
            model(x)
        assert torch.equal(x, before)


class TestWrittenOver:
    """The limit that the README of swap names: what is in one keeps no output that could be written over."""

    @pytest.mark.parametrize("write", [nn.Dropout(0.5, inplace=True), nn.Hardtanh(-1, 1, inplace=True)])
    @pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.ELU()])
    def test_the_gradient_is_that_of_the_model_without_inplace(
        self, activation: nn.Module, write: nn.Module
    ) -> None:
        stock = nn.Sequential(
            nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), activation, copy.deepcopy(write)
        ).double()
        model = opswap.swap(copy.deepcopy(stock))
        stock[3].inplace = False
        x, seed = torch.randn(SIZE, dtype=torch.float64), torch.initial_seed()
        for net in (model, stock):
            torch.manual_seed(seed)
            net(x).square().sum().backward()
        for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9)
