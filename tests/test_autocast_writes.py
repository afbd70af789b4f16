# SPDX-License-Identifier: MIT
"""What code under autocast may do between a forward and its backward: torch has copies in 16 bits, which stay what they
are."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap

LAST = torch.channels_last
pytestmark = pytest.mark.usefixtures("every_rule_applies", "every_half_is_slow")


def chain() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(16, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()),
        *(nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), nn.ReLU6()),
        *(nn.Conv2d(32, 16, 1, bias=False), nn.BatchNorm2d(16)),
    )


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(16, 16, 3, padding=1))


def product() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 12))


def added_to_the_input(model: nn.Module, x: Tensor, dtype: torch.dtype, apart: bool) -> Tensor:
    with torch.autocast("cpu", dtype):
        y = model(x)
        return x + y if apart else x.add_(y)


def input_refilled(model: nn.Module, x: Tensor, dtype: torch.dtype, apart: bool) -> Tensor:
    buffer = x.clone()
    with torch.autocast("cpu", dtype):
        first = model(buffer)
        second = 2 * x if apart else buffer.copy_(2 * x)
        return first + model(second)


def of_the_inference_mode(model: nn.Module, x: Tensor, dtype: torch.dtype, apart: bool) -> Tensor:
    with torch.inference_mode(not apart):
        features = 2 * x
    with torch.autocast("cpu", dtype):
        return model(features)


def weights_written(model: nn.Module, x: Tensor, dtype: torch.dtype, apart: bool) -> Tensor:
    with torch.autocast("cpu", dtype):
        y = model(x)
    with torch.no_grad():
        (torch.clamp if apart else torch.clamp_)(next(model.parameters()), -0.1, 0.1)
    return y


USES = [added_to_the_input, input_refilled, of_the_inference_mode, weights_written]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("make", [chain, convolution, product], ids=lambda make: make.__name__)
def test_a_write_before_the_backward(
    make: Callable[[], nn.Module], use: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    """As in the stock model it changes nothing: the gradients are those of what the forward read."""
    if make is chain and use is weights_written:
        pytest.skip("a chain keeps the weights of its convolutions")
    torch.manual_seed(0)
    stock = make().to(memory_format=LAST)
    with torch.autocast("cpu", dtype):
        model = opswap.swap(copy.deepcopy(stock), memory_format=LAST)
    x = torch.randn(4, 16, 12, 12).contiguous(memory_format=LAST)
    use(stock, x.clone(), dtype, False).float().square().mean().backward()
    found = []
    for apart in (False, True):
        net = copy.deepcopy(model)
        y = use(net, x.clone(), dtype, apart)
        y.float().square().mean().backward()
        found.append([y.detach(), *(p.grad for p in net.parameters())])
    for written, calm in zip(*found, strict=True):
        assert written is not None and calm is not None and torch.equal(written, calm)
