# SPDX-License-Identifier: MIT
"""Swapped models in other processes, in the workers of a DataLoader, and in shallow copies."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import opswap
from nearness import assert_model_as_near
from opswap.swap.runtime.instance_forward import is_rewritten
from spellings import Split
from step import assert_equal, outputs_and_gradients
from swapping import images
from threads import on_threads

pytestmark = pytest.mark.once


class Net(nn.Module):
    """A rewritten class, rewritten layers of torch, and what the two lists of a report are about."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), Split())
        self.end = Split()

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.body(x))


def make() -> nn.Module:
    return opswap.swap(Net(), strict=True)


def _answers(model: nn.Module, x: Tensor) -> dict[str, Any]:
    """What the model computes here; runs in a child process too."""
    torch.set_num_threads(1)
    opswap.reset_stats()
    outputs = [t.tolist() for t in outputs_and_gradients(model, x) if t is not None]
    ran = [o.result for o in opswap.explain(model, x).outcomes]
    stats = opswap.stats()
    again = opswap.swap(opswap.unswap(model, inplace=False))
    return {
        "outputs": outputs,
        "ran": ran,
        "kernels": bool(stats["kernel"]),
        "original": stats["original"],
        "report": str(opswap.report(model)),
        "again": [str(type(m)) for m in again.modules()],
    }


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_a_child_computes_what_the_parent_does(method: str) -> None:
    """The model is pickled to it, or, with fork, also held by its memory."""
    model, x = make(), images()
    with on_threads():
        expected = _answers(copy.deepcopy(model), x)
    context = torch.multiprocessing.get_context(method)
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(["torch", "opswap"])
    with context.Pool(1) as pool:
        found = pool.apply_async(_answers, (model, x)).get(timeout=120)
    assert expected["kernels"] and not expected["original"] and "ran" in expected["ran"]
    assert found == expected


class Augmented(Dataset):
    """Items that go through a swapped model in a worker."""

    def __init__(self, model: nn.Module, items: Tensor) -> None:
        self.model = model.eval()
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Tensor:
        with torch.no_grad():
            return self.model(self.items[index : index + 1])[0]


@pytest.mark.parametrize("method", ("fork", "spawn"))
def test_workers_of_a_data_loader(method: str) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    model, items = make(), images(4, 12, 4, 8)
    model(items)  # statistics, and all that a first call makes
    loader = DataLoader(Augmented(model, items), batch_size=2, num_workers=1, multiprocessing_context=method)
    found = torch.cat(list(loader))
    with torch.no_grad():
        torch.testing.assert_close(found, model.eval()(items), rtol=1e-5, atol=1e-6)


SHALLOW: dict[str, Callable[[nn.Module], Any]] = {
    "unswap": opswap.unswap,
    "a swap without rules": lambda m: opswap.swap(m, rules=()),
    "an exact swap": lambda m: opswap.swap(m, exact=True),
    "a swap with a format": lambda m: opswap.swap(m, memory_format=torch.channels_last),
    "nothing": lambda m: m,
}
MAKES: dict[str, Callable[[], nn.Module]] = {
    "own class": Net,
    "class of torch": lambda: nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12), nn.ReLU(), Split()),
    "one layer": lambda: nn.BatchNorm2d(12),
}


@pytest.mark.parametrize("of_copy", (True, False), ids=("of the copy", "of the original"))
@pytest.mark.parametrize("act", SHALLOW)
@pytest.mark.parametrize("name", MAKES)
def test_a_shallow_copy(name: str, act: str, of_copy: bool) -> None:
    """It shares children, tensors and hooks, as of a stock model; its own forward and plan are its own.

    The report of the other one does not list shared children that are reverted.
    """
    stock = MAKES[name]()
    model = opswap.swap(copy.deepcopy(stock), strict=True)
    twin = copy.copy(model)
    changed, other = (twin, model) if of_copy else (model, twin)
    report, own = opswap.report(other), is_rewritten(other)
    SHALLOW[act](changed)
    now = opswap.report(other)
    lost = {s.path for s in report.swapped} - {s.path for s in now.swapped}
    assert is_rewritten(other) == own and {s.path for s in now.swapped} <= {s.path for s in report.swapped}
    assert not any(is_rewritten(other.get_submodule(path)) for path in lost)
    assert not lost or act not in ("nothing", "a swap with a format")
    for net in (model, twin):
        assert_model_as_near(net, stock, lambda: (images(),))
    opswap.unswap(model)
    opswap.unswap(twin)
    x = images()
    for net in (model, twin):
        assert not any(map(is_rewritten, net.modules()))
        fresh = copy.deepcopy(stock)
        fresh.load_state_dict(net.state_dict())
        assert_equal(outputs_and_gradients(copy.deepcopy(net), x), outputs_and_gradients(fresh, x))
    assert not opswap.report(model).swapped and not opswap.report(twin).swapped


def test_a_shallow_copy_lives_on_alone() -> None:
    model, x = make().eval(), images()
    expected, twin = model(x), copy.copy(model)
    del model
    assert torch.equal(twin(x), expected)
