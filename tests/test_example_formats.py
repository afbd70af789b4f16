# SPDX-License-Identifier: MIT
"""example_inputs in channels_last, of models whose own operators refuse that format."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import opswap
from opswap.swap.capture.quiet import contiguous_inputs

LAST = torch.channels_last


class Pooled(nn.Module):
    """A pool that refuses channels_last, and code behind it that asks for sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool3d((1, 3, 3), (1, 2, 2))
        self.head = nn.Conv2d(8, 8, 1)
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        x = self.head(self.pool(x)).relu()
        return x[:, :, : x.shape[2] // 2] * 2


def images(grad: bool = False) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(2, 8, 9, 11).contiguous(memory_format=LAST).requires_grad_(grad)


@pytest.mark.parametrize("memory_format", [None, LAST])
@pytest.mark.parametrize("grad", [False, True])
def test_swap_takes_them(memory_format: torch.memory_format | None, grad: bool) -> None:
    stock, x = Pooled(), images(grad)
    with pytest.raises(RuntimeError, match="memory format"):
        stock(x)
    stock.runs = 0
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(x,), memory_format=memory_format, strict=True)
    assert [s.path for s in opswap.report(model).swapped if s.rule == "max_pool3d"] == ["pool"]
    assert (
        model.runs == 0 and x.is_contiguous(memory_format=LAST) and x.requires_grad is grad and x.grad is None
    )
    torch.testing.assert_close(model(x), stock(x.detach().contiguous()))


def test_optimize_measures_with_contiguous_ones() -> None:
    stock = Pooled()
    model = opswap.optimize(copy.deepcopy(stock), example_inputs=(images(),), exact=True)
    parts = {p.name: p for p in opswap.report(model).parts}
    assert parts["swap"].before is not None and parts["swap"].after is not None
    torch.testing.assert_close(model(images()), stock(images().contiguous()))


def test_what_stops_in_both_formats_says_why() -> None:
    for x in (torch.randn(2, 7, 9, 11), torch.randn(2, 7, 9, 11).contiguous(memory_format=LAST)):
        with pytest.raises(ValueError, match="the model does not run on example_inputs: "):
            opswap.swap(Pooled(), example_inputs=(x,))
    with pytest.raises(
        ValueError, match="the model does not run on example_inputs: Unsupported memory format"
    ):
        opswap.swap(
            Pooled(), example_inputs=(torch.randn(2, 8, 9, 11)[:, :7].contiguous(memory_format=LAST),)
        )


def test_hooks_seen_in_the_second_run_alone() -> None:
    stock = Pooled()
    stock.head.register_forward_hook(lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opswap.swap(stock, example_inputs=(images(),), strict=True)


def test_contiguous_copies() -> None:
    kept = torch.randn(2, 3, 4, 5)
    given = ({"a": [images(grad=True), kept]}, images(), 3, torch.ones(3).to_sparse())
    (first, second, number, sparse) = contiguous_inputs(given)
    assert [t.is_contiguous() for t in (*first["a"], second)] == [True] * 3
    assert [t.requires_grad for t in (*first["a"], second)] == [True, False, False]
    assert first["a"][1] is kept and number == 3 and sparse is given[3]
    assert torch.equal(second, given[1]) and given[1].is_contiguous(memory_format=LAST)
    assert contiguous_inputs((kept, "x")) is None


def test_inputs_beside_images() -> None:
    """A tuple of several, in containers, is read as it is given."""

    class Beside(Pooled):
        def forward(self, given: dict[str, Tensor], scale: float) -> Tensor:  # type: ignore[override]
            return super().forward(given["image"]) * scale + given["more"].sum()

    stock, given = Beside(), {"image": images(), "more": torch.ones(3).to_sparse()}
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(given, 0.5), strict=True)
    assert given["image"].is_contiguous(memory_format=LAST)
    plain = {**given, "image": given["image"].contiguous()}
    torch.testing.assert_close(model(given, 0.5), stock(plain, 0.5))
