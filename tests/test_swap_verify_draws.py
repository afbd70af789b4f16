# SPDX-License-Identifier: MIT
"""verify of models that draw random numbers behind a shuffle, which keeps another memory format than the stock code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.swap import VerificationError
from opswap.swap.ordered_draws import OrderedDraws
from spellings import by_size
from test_swap_verify import wrong

pytestmark = [pytest.mark.usefixtures("one_thread", "seed")]


class Net(nn.Module):
    """A shuffle between convolutions, and what comes behind it."""

    def __init__(self, behind: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.behind = behind
        self.first, self.last = nn.Conv2d(12, 12, 1), nn.Conv2d(12, 4, 1)
        self.drop, self.planes = nn.Dropout(0.3), nn.Dropout2d(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.behind(self, by_size(self.first(x))))


def noise_in_place(m: Any, x: Tensor) -> Tensor:
    return x + torch.empty_like(x).bernoulli_(0.3)


BEHIND: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "module": lambda m, x: m.drop(x),
    "function": lambda m, x: F.dropout(x, 0.3, m.training),
    "torch's function": lambda m, x: torch.dropout(x, 0.3, m.training),
    "in place": lambda m, x: F.dropout(x * 2, 0.3, m.training, True),
    "in place by name": lambda m, x: F.dropout(x * 2, 0.3, m.training, inplace=True),
    "planes": lambda m, x: m.planes(x),
    "alpha": lambda m, x: F.alpha_dropout(x, 0.3, m.training),
    "rrelu": lambda m, x: F.rrelu(x, training=m.training),
    "a mask of its own": noise_in_place,
    "two": lambda m, x: m.drop(F.relu(m.drop(x))),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
def test_masks_that_differ_by_layout_are_no_failure(
    behind: Callable[[Any, Tensor], Tensor], exact: bool
) -> None:
    report = opswap.verify(Net(behind), (torch.randn(4, 12, 6, 6),), exact=exact)
    assert "channel_shuffle" in {s.rule for s in report.swapped}
    assert all(c.error is None or c.error < 1e-4 for c in report.checks), report
    (check,) = [c for c in report.checks if c.name == "train, channels_last"]
    assert "order of elements" in check.detail or check.detail == "bit-equal"


@pytest.mark.parametrize("behind", [BEHIND["module"], BEHIND["function"], BEHIND["alpha"]])
def test_what_is_wrong_in_one_layout_is_caught_behind_a_mask(behind: Callable[[Any, Tensor], Tensor]) -> None:
    rules = wrong("channel_shuffle(x0, 2, inverse=not x0.is_contiguous())")
    with pytest.raises(VerificationError) as error:
        opswap.verify(Net(behind), (torch.randn(4, 12, 6, 6),), rules=rules)
    assert [
        line for line in str(error.value).splitlines() if "train, channels_last" in line and "FAILS" in line
    ]


def test_kernels_run_and_draw_in_the_order_of_elements() -> None:
    x = torch.randn(4, 12, 6, 6)
    torch.manual_seed(3)
    expected = F.dropout(x, 0.3)
    other = x.contiguous(memory_format=torch.channels_last)
    for function in (F.dropout, opswap.functional.dropout):
        opswap.reset_stats()
        torch.manual_seed(3)
        with OrderedDraws():
            y = function(other, 0.3)
            z = opswap.functional.channel_shuffle(other, 2)
        assert torch.equal(y, expected) and y.is_contiguous(memory_format=torch.channels_last)
        assert opswap.stats()["kernel"]["cat_channel_shuffle_split"] == 1
        assert torch.equal(z, F.channel_shuffle(x, 2)) and not opswap.stats()["reference"]


def test_gradients_of_what_is_drawn_in_order() -> None:
    x = torch.randn(2, 4, 3, 3)
    grads = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        leaf = x.clone(memory_format=memory_format).requires_grad_()
        torch.manual_seed(5)
        with OrderedDraws():
            y = F.dropout(leaf * 2, 0.5, True, True) + F.dropout(leaf, 0.5) + (leaf * 1).bernoulli_(0.5)
        (y * x).sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)
