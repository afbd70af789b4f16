# SPDX-License-Identifier: MIT
"""The rules for torch's own convolutions: which ones they take, and what may change after the swap."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import opswap
from counted import counts, kernels
from nearness import assert_model_as_near, assert_trains_as_near
from opswap.ops.depthwise import depthwise_wins
from opswap.ops.pointwise import pointwise_wins
from opswap.swap.rules import convolution
from step import outputs_and_gradients
from twins import twins

LAST = torch.channels_last
pytestmark = [
    pytest.mark.skipif(not pointwise_wins(), reason="left to torch on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]


POINTWISE = [
    nn.Conv2d(9, 8, 1),
    nn.Conv2d(9, 8, 1, padding="same"),
    nn.Conv2d(9, 8, 1, bias=False, dilation=2),
    nn.Conv2d(9, 8, 1, stride=2),
    nn.Conv2d(9, 8, 1, stride=(1, 3), padding="valid", bias=False),
]
DEPTHWISE = [
    nn.Conv2d(9, 9, 3, groups=9),
    nn.Conv2d(9, 9, 3, 2, 1, groups=9, bias=False),
    nn.Conv2d(9, 9, 5, padding=2, groups=9),
    nn.Conv2d(9, 9, 7, padding=3, groups=9),
    nn.Conv2d(9, 9, 9, 2, 4, groups=9),
    nn.Conv2d(9, 9, 3, dilation=2, groups=9),
    nn.Conv2d(9, 9, 3, padding="same", groups=9),
]
TAKEN = [*((m, "pointwise") for m in POINTWISE), *((m, "depthwise") for m in DEPTHWISE)]
LEFT = [
    nn.Conv2d(6, 8, 3),
    nn.Conv2d(9, 9, 3, groups=3),
    nn.Conv2d(9, 18, 3, groups=9),
    nn.Conv2d(9, 9, (3, 4), groups=9),
    nn.Conv2d(9, 9, 11, padding=5, groups=9),
    nn.Conv2d(9, 9, 3, 2, dilation=2, groups=9),
    nn.Conv2d(9, 9, 3, padding=1, padding_mode="reflect", groups=9),
    nn.Conv2d(6, 8, 1, padding=1),
    nn.Conv2d(6, 8, 1, groups=2),
    nn.Conv2d(6, 8, (1, 3)),
    nn.Conv2d(512, 256, 1),  # as fast in the convolution library
    nn.Conv1d(6, 8, 1),
    nn.ConvTranspose2d(6, 8, 1),
]


def taken_by(**options: Any) -> set[str]:
    """The rules that apply; what mends a gradient of torch has nothing to do with kernels."""
    model = nn.Sequential(*(copy.deepcopy(m) for m, _ in TAKEN))
    return {site.rule for site in opswap.scan(model, **options).swapped}


class TestRule:
    @pytest.mark.parametrize(("conv", "kind"), TAKEN, ids=str)
    def test_taken(self, conv: nn.Conv2d, kind: str) -> None:
        stock = nn.Sequential(copy.deepcopy(conv), nn.ReLU())
        model = opswap.swap(copy.deepcopy(stock))
        (site,) = opswap.report(model).swapped
        assert (site.path, site.rule, site.exact) == ("0", f"{kind}_conv", False)
        assert type(model[0]).__name__ == "Conv2d" and isinstance(model[0], nn.Conv2d)
        x = torch.randn(2, 9, 8, 7).contiguous(memory_format=LAST)
        opswap.reset_stats()
        outputs_and_gradients(model, x)
        assert counts() == ({f"{kind}_conv2d": 1, f"{kind}_conv2d_backward": 1}, {})
        assert_model_as_near(model, stock, lambda: (torch.randn(2, 9, 8, 7).contiguous(memory_format=LAST),))
        x = x.contiguous()
        opswap.reset_stats()
        ours, theirs = (outputs_and_gradients(m, x) for m in (model, stock))
        if kind == "depthwise" or conv.stride == (1, 1):
            assert counts() == ({f"{kind}_conv2d": 1, f"{kind}_conv2d_backward": 1}, {})
            assert_model_as_near(model, stock, lambda: (torch.randn(2, 9, 8, 7),))
        else:
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)) and counts() == ({}, {})
        assert type(opswap.unswap(model)[0]) is nn.Conv2d

    @pytest.mark.parametrize("conv", LEFT, ids=str)
    def test_left(self, conv: nn.Module) -> None:
        assert {s.rule for s in opswap.scan(nn.Sequential(conv)).swapped} <= {"conv2d"}

    def test_not_where_it_is_asked_to_be_exact(self) -> None:
        assert taken_by(exact=True) == {"strided_conv_gradient"}

    def test_settings_and_hooks_after_the_swap(self) -> None:
        model = opswap.swap(nn.Sequential(nn.Conv2d(6, 8, 1)))
        x, seen = torch.randn(2, 6, 5, 4).contiguous(memory_format=LAST), []
        handle = model[0].register_forward_hook(lambda module, args, output: seen.append(output.shape))
        model(x)
        handle.remove()
        assert seen == [(2, 8, 5, 4)]
        model[0].stride = (2, 2)
        opswap.reset_stats()
        assert model(x).shape == (2, 8, 3, 2) and counts() == ({"pointwise_conv2d": 1}, {})
        model[0].stride, model[0].weight = (1, 1), nn.Parameter(torch.ones(3, 6, 1, 1))
        model[0].bias = None
        torch.testing.assert_close(model(x), x.sum(1, keepdim=True).expand(2, 3, 5, 4))

    def test_copies(self) -> None:
        model = opswap.swap(nn.Sequential(nn.Conv2d(6, 8, 1)))
        x = torch.randn(2, 6, 5, 4).contiguous(memory_format=LAST)
        for twin in twins(model):
            opswap.reset_stats()
            assert torch.equal(twin(x), model(x)) and counts()[0] == {"pointwise_conv2d": 2}

    def test_not_beside_wider_vectors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind in ("pointwise", "depthwise"):
            monkeypatch.setattr(convolution, f"{kind}_wins", lambda: False)
        assert taken_by() == {"strided_conv_gradient"}

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_weights_in_16_bits(self, dtype: torch.dtype) -> None:
        """No condition of a kernel for wider dtypes is looked at in each call; depthwise ones have kernels for 16 bits.
        Another swap finds a model that is wide again."""
        layers = (nn.Conv2d(48, 48, 1), nn.Conv2d(48, 48, 3, 1, 1, groups=48), nn.Conv2d(48, 48, 3))
        model = opswap.swap(nn.Sequential(*layers).to(dtype), rules=convolution.RULES)
        report = opswap.report(model)
        assert {s.path for s in report.swapped} == ({"1"} if depthwise_wins() else set())
        assert type(model[0]) is nn.Conv2d
        reasons = {site.path: site.reason for site in report.kept}
        expected = f"a weight in {str(dtype)[6:]}: the kernels are for float32 and float64"
        assert {path for path, reason in reasons.items() if reason == expected} == {"0", "2"}
        found = {str(i) for i, swaps in enumerate((True, depthwise_wins(), True)) if swaps}
        assert {s.path for s in opswap.report(opswap.swap(model.float())).swapped} == found

    def test_one_kind_alone(self) -> None:
        rules = [r for r in convolution.RULES if r.name == "depthwise_conv"]
        model = opswap.swap(nn.Sequential(nn.Conv2d(9, 9, 1), nn.Conv2d(9, 9, 3, groups=9)), rules=rules)
        assert [s.path for s in opswap.report(model).swapped] == ["1"] and type(model[0]) is nn.Conv2d

    def test_losses_of_several_steps(self) -> None:
        """A net trained with it stays as near to float64 as the stock one does."""
        stock = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2),
            nn.Conv2d(24, 58, 1),
            nn.ReLU(),
            nn.Conv2d(58, 58, 3, 2, 1, groups=58),
            nn.ReLU(),
            nn.Conv2d(58, 5, 1),
        ).to(memory_format=LAST)
        model = opswap.swap(copy.deepcopy(stock))

        x = torch.empty(4, 3, 33, 33).contiguous(memory_format=LAST)
        assert_trains_as_near(model, stock, lambda: torch.randn_like(x), lr=0.1, momentum=0.9)


@pytest.mark.skipif(not depthwise_wins(), reason="torch is as fast on this tier")
@pytest.mark.parametrize(
    ("taps", "stride", "size", "inference"),
    [
        ((7, 7), 2, 28, 1),
        ((9, 9), 2, 28, 1),
        ((5, 5), 2, 28, 1),
        ((1, 5), 1, 128, 0),
        ((1, 7), 1, 128, 0),
        ((1, 5), 1, 126, 1),
        ((1, 9), 1, 128, 1),
        ((5, 1), 1, 128, 1),
    ],
)
def test_windows_of_one_row_are_torchs_in_inference_on_large_inputs(
    taps: tuple[int, int], stride: int, size: int, inference: int
) -> None:
    """With AVX-512 torch's forward is faster there, and its gradients are not."""
    if opswap.isa.current() != "avx512":
        inference = 1
    padding = (taps[0] // 2, taps[1] // 2)
    model = opswap.swap(nn.Conv2d(16, 16, taps, stride, padding, groups=16).to(memory_format=LAST))
    x = torch.randn(4, 16, size, size).contiguous(memory_format=LAST)
    for graph in (True, False):
        opswap.reset_stats()
        with torch.set_grad_enabled(graph):
            model(x)
        assert kernels("depthwise_conv2d") == (1 if graph else inference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("taps", "groups"), [(1, 1), (3, 1), (3, 16)])
@pytest.mark.parametrize("option", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.usefixtures("every_half_is_slow")
def test_options_that_are_numbers_of_numpy(
    dtype: torch.dtype, taps: int, groups: int, option: str, number: int
) -> None:
    """torch takes them, in the place of an int."""
    layer = nn.Conv2d(16, 16, taps, groups=groups).to(dtype)
    setattr(layer, option, np.int64(number))
    x = torch.randn(2, 16, 9, 8).to(dtype).contiguous(memory_format=torch.channels_last)
    expected = layer(x)
    options = {option: np.int64(number)}
    weights = layer.weight, layer.bias
    for output in (
        opswap.swap(nn.Sequential(copy.deepcopy(layer)))(x),
        opswap.functional.conv2d(x, *weights, groups=groups, **options),
    ):
        torch.testing.assert_close(output, expected, rtol=2e-2, atol=2e-2)
