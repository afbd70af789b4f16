# SPDX-License-Identifier: MIT
"""Swapped models in other processes: in the workers of a DataLoader, trained by several at once, and sent back."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.multiprocessing as multiprocessing
from torch import Tensor, nn

import opswap

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore:.*worker")]

METHODS = ["fork", "spawn"]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.ChannelShuffle(4), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 5)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def images(seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 24, 24, generator=generator).contiguous(memory_format=torch.channels_last)


class Features(torch.utils.data.Dataset[Tensor]):
    """Outputs of a model, computed in the workers."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.model(images(index, 1))[0]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_workers_of_a_loader(method: str, frozen: bool) -> None:
    model = opswap.swap(network().eval())
    if frozen:
        model = opswap.freeze(model)
        for _ in range(4):  # from the third on a recorded call is replayed, which the workers must make anew
            Features(model)[0]
    loader = torch.utils.data.DataLoader(
        Features(model), 3, num_workers=2, multiprocessing_context=method, persistent_workers=True
    )
    stock = Features(network().eval())
    want = torch.stack([stock[i] for i in range(len(stock))])
    for _ in range(2):
        torch.testing.assert_close(torch.cat([*loader]), want, atol=1e-5, rtol=1e-4)


def train(rank: int, model: nn.Module, results: Any) -> None:
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images(step % 2, 8)), torch.arange(8) % 5)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    ran = [o.ran for o in opswap.explain(model, images(0, 8)).outcomes]
    results.put((rank, losses, ran))


def train_at_once(method: str) -> None:
    context = multiprocessing.get_context(method)
    model = opswap.swap(network())
    model.share_memory()
    before, results = copy.deepcopy(model.state_dict()), context.Queue()
    processes = [context.Process(target=train, args=(rank, model, results)) for rank in range(2)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(math.isfinite(sum(losses)) and any(ran) for _, losses, ran in answers), answers
    # The gradient of the bias in front of a BatchNorm is 0 but for rounding.
    same = [name for name, t in model.state_dict().items() if torch.equal(t, before[name])]
    assert set(same) <= {"0.bias"}, same
    assert 20 < model[1].num_batches_tracked <= 40
    stock, x = opswap.unswap(copy.deepcopy(model)), images(0, 8)
    torch.testing.assert_close(model.eval()(x), stock.eval()(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_several_processes_train_one_model(method: str) -> None:
    """As in Hogwild: parameters and running statistics lie in shared memory, and nobody waits: losses may rise.

    In a new process, since what is forked from one whose autograd has threads, of another test, has no backward.
    """
    process = multiprocessing.get_context("spawn").Process(target=train_at_once, args=(method,))
    process.start()
    process.join()
    assert process.exitcode == 0


def send(model: nn.Module, results: Any, done: Any) -> None:
    results.put(model)
    done.wait(200)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_comes_back(method: str) -> None:
    context = multiprocessing.get_context(method)
    model = opswap.swap(network().eval()).share_memory()
    results, done = context.SimpleQueue(), context.Event()
    process = context.Process(target=send, args=(model, results, done))
    process.start()
    returned = results.get()
    done.set()
    process.join()
    x = images(0, 2)
    assert torch.equal(returned(x), model(x))
    assert any(o.ran for o in opswap.explain(returned, x).outcomes)
