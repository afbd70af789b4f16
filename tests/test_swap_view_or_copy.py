# SPDX-License-Identifier: MIT
"""Code that can tell whether a shuffle gave it contiguous memory: views, and writes to what may be one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap.rules.permutation import strides_fall
from spellings import by_size

Body = Callable[["Net", Tensor], Tensor]
ORDER = [7, 0, 11, 3, 5, 1, 10, 2, 9, 4, 8, 6]
SHUFFLE = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]


class Shuffle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return by_size(x)


class Select(nn.Module):
    """Selects by an order in a buffer, which is a shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.tensor(SHUFFLE))

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.order)


class Net(nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.shuffle, self.select = Shuffle(), Select()
        self.register_buffer("order", torch.tensor(ORDER))
        self.register_buffer("shuffle_order", torch.tensor(SHUFFLE))
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


def view_of_a_module(self: Net, x: Tensor) -> Tensor:
    return self.shuffle(x).view(2, -1)


def view_of_a_module_behind_a_pool(self: Net, x: Tensor) -> Tensor:
    return self.pool(self.shuffle(x)).view(2, -1)


def view_of_an_index(self: Net, x: Tensor) -> Tensor:
    return x[:, self.shuffle_order].view(2, -1)


def view_of_an_index_in_the_code(self: Net, x: Tensor) -> Tensor:
    return self.pool(x[:, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]]).view(2, -1)


def view_of_a_selection(self: Net, x: Tensor) -> Tensor:
    return self.pool(x.index_select(1, self.shuffle_order)).view(2, -1)


def view_of_a_selection_in_a_module(self: Net, x: Tensor) -> Tensor:
    return self.pool(self.select(x)).view(2, -1)


def view_of_a_transposed_index(self: Net, x: Tensor) -> Tensor:
    """torch's index keeps the order of the other strides."""
    return x.transpose(2, 3)[:, self.order].transpose(2, 3).view(2, -1)


def view_of_a_transposed_shuffle_by_index(self: Net, x: Tensor) -> Tensor:
    return x.transpose(2, 3)[:, self.shuffle_order].transpose(2, 3).view(2, -1)


def dropout_of_a_transposed_index(self: Net, x: Tensor) -> Tensor:
    return nn.functional.dropout(x.transpose(2, 3)[:, self.order])


BODIES = (
    reshape, flatten, ravel, contiguous, reshape_as, flattened_by_a_module, behind_a_relu, behind_a_pool, permuted,
    resized, view_behind_a_pool, view_behind_a_norm, view_behind_a_block, view_as,
    view_of_a_module, view_of_a_module_behind_a_pool, view_of_an_index, view_of_an_index_in_the_code,
    view_of_a_selection, view_of_a_selection_in_a_module, view_of_a_transposed_index,
    view_of_a_transposed_shuffle_by_index, dropout_of_a_transposed_index,
)  # fmt: skip


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("body", BODIES, ids=lambda b: b.__name__)
def test_what_tells_a_view_from_a_copy(body: Body, memory_format: torch.memory_format) -> None:
    stock, model = net(body), opswap.swap(net(body), exact=True)
    x = torch.randn(2, 12, 4, 6).contiguous(memory_format=memory_format)
    with torch.no_grad():
        torch.manual_seed(0)
        ours = model(x.clone())
        torch.manual_seed(0)
        assert torch.equal(ours, stock(x.clone()))


def read_only(self: Net, x: Tensor) -> Tensor:
    y = by_size(x)
    return y.reshape(-1) + y.flatten().sum()


def written_and_not_seen(self: Net, x: Tensor) -> Tensor:
    return by_size(x).flatten(1).mul_(2)


def flat_pool(self: Net, x: Tensor) -> Tensor:
    return nn.functional.adaptive_avg_pool2d(by_size(x), 1).view(2, -1)


def flat_pool_of_an_index(self: Net, x: Tensor) -> Tensor:
    return nn.functional.adaptive_avg_pool2d(x[:, self.shuffle_order], 1).view(2, -1)


def flat_pool_of_a_selection(self: Net, x: Tensor) -> Tensor:
    return nn.functional.adaptive_avg_pool2d(self.select(x), 1).view(2, -1)


KEEP = (read_only, written_and_not_seen, flat_pool, flat_pool_of_an_index, flat_pool_of_a_selection)


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("body", KEEP, ids=lambda b: b.__name__)
def test_what_cannot_tell_keeps_the_kernel(body: Body) -> None:
    stock, model = net(body), opswap.swap(net(body), exact=True)
    x = torch.randn(2, 12, 4, 6).contiguous(memory_format=torch.channels_last)
    opswap.reset_stats()
    torch.testing.assert_close(model(x), stock(x))
    assert sum(opswap.stats()["kernel"].values()) == 1


def test_which_tensors_torch_indexes_to_contiguous_ones() -> None:
    """Of permuted and overlapping tensors; most contiguous results are of tensors whose strides fall."""
    generator = random.Random(0)
    found = 0
    for _ in range(2000):
        size = [generator.randint(1, 4) for _ in range(generator.randint(2, 5))]
        dims = generator.sample(range(len(size)), len(size))
        x = torch.zeros([size[d] for d in dims]).permute([dims.index(d) for d in range(len(size))])
        if generator.random() < 0.3:
            x = torch.zeros(2000).as_strided(size, [generator.choice((0, 1, 2, 3, 6, 12, 24)) for _ in size])
        if strides_fall(x):
            found += 1
            assert x[:, torch.randperm(size[1])].is_contiguous(), (size, x.stride())
    assert found > 500
    assert all(
        strides_fall(x) for x in (torch.zeros(2, 4), torch.zeros(4, 2).t(), torch.zeros(2, 8, 3)[:, 4:])
    )
    assert strides_fall(torch.zeros(2, 4, 3, 5).contiguous(memory_format=torch.channels_last))
    assert not strides_fall(torch.zeros(2, 4, 3, 5).transpose(2, 3))
    assert not strides_fall(torch.zeros(2, 4).to_sparse())
