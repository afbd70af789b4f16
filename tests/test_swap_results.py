# SPDX-License-Identifier: MIT
"""A swap with example inputs runs each module of the model once: for other runs its result is known by size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap.capture import example_run
from opswap.swap.capture.results import NeedsElementsError, Results, SizesOnly
from swapping import images, same_on_every_call


class Asks(nn.Module):
    """Which code runs depends on the size of what a module returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = inner, nn.BatchNorm2d(12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return torch.relu(self.norm(y)) if y.shape[2] > 2 else y


class Selects(Asks):
    """A size depends on the elements of what a module returns."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        kept = y[y > 0.0]
        return torch.relu(self.norm(y)) if kept.shape[0] > 3 else y - 1.0


class Inverts(Asks):
    """Fails for zeros, before code whose constant sizes include the batch."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        gram = (y.flatten(2) @ y.flatten(2).transpose(1, 2))[:, :1, :1]
        z = y * torch.linalg.cholesky(gram)[:, :, :, None]
        return z.view(2, 2, 6, 4, 8).transpose(1, 2).reshape(2, 12, 4, 8)


class Twice(nn.Module):
    """A module is called twice, with two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.conv(x)[:, :, ::2])
        return torch.relu(self.norm(y)) if y.shape[2] < 4 else y


class Whole(nn.Module):
    """A module returns no tensor of numbers."""

    class Shape(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, torch.tensor(x.shape[1])

    def __init__(self) -> None:
        super().__init__()
        self.shape = self.Shape()

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y, _ = self.shape(x)
        return y.view(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w)


def conv() -> nn.Module:
    return nn.Conv2d(12, 12, 3, padding=1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "asks": lambda: Asks(Asks(conv())),
    "selects": lambda: Selects(Asks(conv())),
    "inverts": lambda: Inverts(Asks(conv())),
    "twice": Twice,
    "no tensor": Whole,
    "views": lambda: Asks(nn.Sequential(nn.Flatten(2), nn.Unflatten(2, (4, 8)))),
}


def found(model: nn.Module) -> Counter[Any]:
    report = opswap.report(opswap.swap(model, example_inputs=(images(),)))
    return Counter((s.path, s.rule, s.exact, s.reason) for s in (*report.swapped, *report.kept))


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_swap_finds_what_it_finds_when_all_modules_run(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    stock, model = make(), make()
    model.load_state_dict(stock.state_dict())
    known = found(model)
    assert any(rule == "channel_shuffle" and not reason for _, rule, _, reason in known) is (
        make is MODELS["inverts"]
    )
    same_on_every_call(stock, model)
    monkeypatch.setattr(Results, "knows", lambda self, module: False)
    monkeypatch.setattr(Results, "of", lambda self, module: None)
    assert found(make()) == known


def test_each_convolution_of_a_deep_model_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[int]()
    call = example_run.quiet_call

    def counting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls[id(module)] += isinstance(module, nn.Conv2d)
        return call(module, *args, **kwargs)

    monkeypatch.setattr(example_run, "quiet_call", counting)
    model = conv()
    for _ in range(5):
        model = nn.Sequential(Asks(model), conv())
    opswap.swap(model, example_inputs=(images(),))
    assert set(calls.values()) <= {0, 1} and calls.total() == 6


ELEMENTS: dict[str, Callable[[Tensor], Any]] = {
    "mask": lambda x: x[x > 0.0],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0.0),
    "repeat": lambda x: x[0, 0, 0].repeat_interleave(x[0, 0, 0].long().abs() + 1),
}


@pytest.mark.parametrize("read", ELEMENTS.values(), ids=ELEMENTS)
def test_zeros_stand_for_sizes_alone(read: Callable[[Tensor], Any]) -> None:
    with SizesOnly(), pytest.raises(NeedsElementsError):
        read(images())


def test_what_stands_for_a_result() -> None:
    results, first, last = Results(), nn.ReLU(), nn.ReLU()
    x = images().contiguous(memory_format=torch.channels_last).bfloat16()
    results.note(first, x)
    zeros = results.of(first)
    assert zeros is not None and zeros.dtype is x.dtype and zeros.stride() == x.stride()
    assert zeros.shape == x.shape and not zeros.any()
    results.note(first, x)
    assert results.of(first) is None  # called twice
    for result in (
        x.expand(2, *x.shape),
        x[:, :, ::2],
        x.long(),
        (x, x),
        None,
        x.to_sparse(),
        nn.Parameter(x),
    ):
        other = nn.ReLU()
        results.note(other, result)
        assert not results.knows(other) and results.of(other) is None
    assert not results.knows(last)
