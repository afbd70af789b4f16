# SPDX-License-Identifier: MIT
"""torch.enable_grad() inside torch.inference_mode(): autograd records nothing there, so that no operator may try to."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

import opswap

CHAIN = [
    nn.Conv2d(16, 32, 1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, 1, 1, groups=32, bias=False),
    nn.BatchNorm2d(32),
    nn.Conv2d(32, 16, 1, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(),
]
MODELS = {
    "batch_norm": [nn.BatchNorm2d(16), nn.ReLU()],
    "batch_norm_silu": [nn.BatchNorm2d(16), nn.SiLU()],
    "group_norm": [nn.GroupNorm(4, 16), nn.ReLU()],
    "instance_norm": [nn.InstanceNorm2d(16, affine=True)],
    "layer_norm": [nn.LayerNorm(56)],
    "chain": CHAIN,
    "pointwise": [nn.Conv2d(16, 32, 1)],
    "strided": [nn.Conv2d(16, 48, 1, stride=2)],
    "conv": [nn.Conv2d(16, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU()],
    "depthwise": [nn.Conv2d(16, 16, 3, 1, 1, groups=16)],
    "max_pool": [nn.Conv2d(16, 16, 1), nn.MaxPool2d(3, 2, 1)],
    "avg_pool": [nn.Conv2d(16, 16, 1), nn.AvgPool2d(3, 2, 1)],
    "adaptive_max_pool": [nn.Conv2d(16, 16, 1), nn.AdaptiveMaxPool2d(1)],
    "silu": [nn.Conv2d(16, 16, 1), nn.SiLU()],
    "dropout": [nn.Conv2d(16, 16, 1), nn.Dropout(0.5)],
    "shuffle": [nn.Conv2d(16, 16, 1), nn.ChannelShuffle(2)],
    "linear": [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)],
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("slow", [False, True], ids=["", "16 bits are slow"])
def test_swapped_models_record_no_graph(
    name: str, slow: bool, every_rule_applies: None, request: pytest.FixtureRequest
) -> None:
    if slow:
        request.getfixturevalue("every_half_is_slow")
    formats = (torch.contiguous_format, torch.channels_last)
    for training, format, dtype in itertools.product((True, False), formats, (torch.float32, torch.bfloat16)):
        stock = nn.Sequential(*copy.deepcopy(MODELS[name])).train(training).to(dtype).to(memory_format=format)
        swapped = opswap.swap(copy.deepcopy(stock))
        for autocast, needs_gradient in itertools.product((False, True), repeat=2):
            x = (
                torch.randn(4, 16, 56, 56, dtype=dtype)
                .to(memory_format=format)
                .requires_grad_(needs_gradient)
            )
            results = []
            for model in (stock, swapped):
                torch.manual_seed(0)
                with torch.inference_mode(), torch.enable_grad(), torch.autocast("cpu", enabled=autocast):
                    results.append(model(x))
            expected, found = results
            assert expected.is_inference() and not expected.requires_grad
            assert found.is_inference() and not found.requires_grad and found.dtype is expected.dtype
            difference = (found.double() - expected.double()).abs().max()
            assert difference <= (1e-4 if found.dtype is torch.float32 else 0.1) * expected.abs().max(), (
                name,
                dtype,
            )


def test_functions_record_no_graph() -> None:
    x = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    weight = nn.Parameter(torch.randn(2, 5, 8))
    with torch.inference_mode(), torch.enable_grad():
        y = x * 1
        made = [
            opswap.functional.channel_shuffle(y, 4),
            opswap.functional.max_pool2d(y, 3, 2, 1),
            opswap.functional.grouped_linear(y.mean((2, 3)).view(2, 2, 8), weight),
            *opswap.functional.cat_channel_shuffle_split([y, y], 2, 2),
        ]
    assert all(t.is_inference() and not t.requires_grad for t in made)
