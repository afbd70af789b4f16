# SPDX-License-Identifier: MIT
"""Code that can tell whether a shuffle gave it contiguous memory: views, and writes to what may be one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from spellings import by_size

Body = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.flat, self.pool, self.norm = nn.Flatten(), nn.MaxPool2d(2), nn.BatchNorm2d(12)
        self.block = nn.Sequential(nn.AvgPool2d(2), nn.ReLU())


def net(body: Body) -> Net:
    """A network of a class of its own, whose forward is the body."""
    cls = type("Own", (Net,), {"forward": body})
    return cls(body)


def reshape(self: Net, x: Tensor) -> Tensor:
    y = by_size(x)
    y.reshape(-1).mul_(2)
    return y


def flatten(self: Net, x: Tensor) -> Tensor:
    y = by_size(x)
    torch.flatten(y, 1).mul_(2)
    return y


def ravel(self: Net, x: Tensor) -> Tensor:
    y = by_size(x)
    y.ravel()[3:] = 0
    return y


def contiguous(self: Net, x: Tensor) -> Tensor:
    y = by_size(x)
    z = y.contiguous()
    z += 1
    return y


def reshape_as(self: Net, x: Tensor) -> Tensor:
    y = by_size(x)
    z = y.reshape_as(torch.zeros(y.numel()))
    y.mul_(2)
    return z


def flattened_by_a_module(self: Net, x: Tensor) -> Tensor:
    y = by_size(x)
    self.flat(y).mul_(2)
    return y


def behind_a_relu(self: Net, x: Tensor) -> Tensor:
    y = by_size(x).relu()
    y.reshape(-1).mul_(2)
    return y


def behind_a_pool(self: Net, x: Tensor) -> Tensor:
    y = self.pool(by_size(x))
    y.reshape(-1).mul_(2)
    return y


def permuted(self: Net, x: Tensor) -> Tensor:
    """A copy of a permuted tensor, unless that lies in channels_last."""
    y = by_size(x)
    y.permute(0, 2, 3, 1).reshape(-1).mul_(2)
    return y


def resized(self: Net, x: Tensor) -> Tensor:
    return by_size(x).resize_(2, 2, 4, 4)


def view_behind_a_pool(self: Net, x: Tensor) -> Tensor:
    return self.pool(by_size(x)).view(2, -1)


def view_behind_a_norm(self: Net, x: Tensor) -> Tensor:
    return self.norm(by_size(x)).view(-1)


def view_behind_a_block(self: Net, x: Tensor) -> Tensor:
    return torch.Tensor.view(self.block(by_size(x)), -1)


def view_as(self: Net, x: Tensor) -> Tensor:
    return by_size(x).view_as(torch.zeros(x.numel()))


BODIES = (
    reshape, flatten, ravel, contiguous, reshape_as, flattened_by_a_module, behind_a_relu, behind_a_pool, permuted,
    resized, view_behind_a_pool, view_behind_a_norm, view_behind_a_block, view_as,
)  # fmt: skip


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_what_tells_a_view_from_a_copy(body: Body, memory_format: torch.memory_format) -> None:
    stock, model = net(body), opswap.swap(net(body), exact=True)
    x = torch.randn(2, 12, 4, 6).contiguous(memory_format=memory_format)
    with torch.no_grad():
        assert torch.equal(model(x.clone()), stock(x.clone()))


def read_only(self: Net, x: Tensor) -> Tensor:
    y = by_size(x)
    return y.reshape(-1) + y.flatten().sum()


def written_and_not_seen(self: Net, x: Tensor) -> Tensor:
    return by_size(x).flatten(1).mul_(2)


def flat_pool(self: Net, x: Tensor) -> Tensor:
    return nn.functional.adaptive_avg_pool2d(by_size(x), 1).view(2, -1)


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("body", [read_only, written_and_not_seen, flat_pool], ids=lambda b: b.__name__)
def test_what_cannot_tell_keeps_the_kernel(body: Body) -> None:
    stock, model = net(body), opswap.swap(net(body), exact=True)
    x = torch.randn(2, 12, 4, 6).contiguous(memory_format=torch.channels_last)
    opswap.reset_stats()
    torch.testing.assert_close(model(x), stock(x))
    assert sum(opswap.stats()["kernel"].values()) == 1
