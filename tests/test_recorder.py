# SPDX-License-Identifier: MIT
"""What is recorded of a call of a swapped model, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap import _core
from opswap.swap.replay.recorder import NotRecordedError, record
from replay_cases import LAST, compare, inputs, kept, made, plans, replaying, scaled

pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]


class Holder(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function


def noisy(x: Tensor) -> Tensor:
    return x + torch.randn(1)


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5)


def dropped_attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


def written(x: Tensor) -> Tensor:
    return torch.relu_(x * 1)


def written_view(x: Tensor) -> Tensor:
    y = x * 1
    y[0] = 1
    return y


def written_by_name(x: Tensor) -> Tensor:
    return F.relu(x * 1, inplace=True)


def added_in_place(x: Tensor) -> Tensor:
    y = x * 1
    y += 1
    return y


def written_twice(x: Tensor) -> Tensor:
    y = x * -1
    part = y.flatten()
    part += 3
    return y + torch.sigmoid_(part).view_as(x).mul_(2)


def written_input(x: Tensor) -> Tensor:
    return torch.neg_(x)


def written_part_of_the_input(x: Tensor) -> Tensor:
    x[:1].mul_(2)
    return x * 1


def written_input_by_name(x: Tensor) -> Tensor:
    return F.leaky_relu(-x, inplace=True) + F.elu(x, inplace=True)


def written_hidden(x: Tensor) -> Tensor:
    return HIDDEN.add_(1) + x


def written_out(x: Tensor) -> Tensor:
    return torch.add(x, 1, out=torch.ones_like(x))


def branching(x: Tensor) -> Tensor:
    return x if x.mean() > 0 else -x


def reading(x: Tensor) -> Tensor:
    return x * x.max().item()


def listing(x: Tensor) -> Tensor:
    return x * len(x.flatten().tolist())


def uninitialised(x: Tensor) -> Tensor:
    return torch.empty_like(x) * 0 + x


def elsewhere(x: Tensor) -> Tensor:
    return x + HIDDEN


def number(x: Tensor) -> tuple[Tensor, object]:
    return x, object()


HIDDEN = torch.ones(1)


@pytest.mark.parametrize(
    "function",
    [noisy, dropped, dropped_attention, written_view, written_input, written_part_of_the_input,
     written_input_by_name, written_hidden, written_out, branching, reading, listing, uninitialised, elsewhere, number],
)  # fmt: skip
def test_what_is_not_recorded(function: Callable[[Tensor], Any]) -> None:
    x = torch.ones(2, 3)
    with pytest.raises(NotRecordedError):
        record(function, (x,), Holder(function))
    assert not _core.recording()
    assert torch.equal(x, torch.ones(2, 3)) and torch.equal(HIDDEN, torch.ones(1))


def parts(x: Tensor) -> Any:
    a, b = x.split([1, 2], 1)
    return [a + x.shape[0], (b.t().contiguous(), x)]


def attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x * 2, x + 1) / x.norm(p=2, dim=-1, keepdim=True)


def ellipses(x: Tensor) -> Tensor:
    return x[..., None, :2] * x.sigmoid()[..., :1, None] + x[x.argmax(-1).clamp(max=1), ..., 0].mean()


def module_of_functions(x: Tensor) -> Tensor:
    y = opswap.functional.max_pool2d(x[None], 2)
    return F.pad(y, (1, 1)).sum(dim=(1, 2), keepdim=True, dtype=torch.float64)


@pytest.mark.parametrize(
    "function",
    [
        attention,
        parts,
        ellipses,
        module_of_functions,
        scaled,
        written,
        written_by_name,
        added_in_place,
        written_twice,
    ],
)
def test_what_is_recorded(function: Callable[[Tensor], Any]) -> None:
    recording = record(
        function,
        (torch.randn(2, 3, 4)[:, :, 0] if function is parts else torch.randn(2, 4, 4),),
        nn.Identity(),
    )
    x = torch.randn(2, 3) if function is parts else torch.randn(2, 4, 4)
    torch.testing.assert_close(recording.run(x), function(x), rtol=0, atol=0)


class Followed(nn.Module):
    """Its forward cannot be followed, so that the code in it may do anything."""

    def __init__(self) -> None:
        super().__init__()
        self.block = made()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.block(x) + self.calls


def test_forwards_that_are_not_rewritten_run() -> None:
    stock = nn.Sequential(Followed()).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    for _ in range(8):
        compare(stock, model)
    assert plans(model[0].block) == 1
    assert not kept(model).plans
    assert not kept(model[0]).plans


class Counting(nn.Sequential):
    """Its forward is torch's, but a call does more."""

    calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return super().__call__(*args)


class Drifting(nn.Hardtanh):
    """Its forward is torch's, but a bound is made of what the class has seen."""

    reads = 0

    @property
    def max_val(self) -> float:
        Drifting.reads += 1
        return 0.1 * Drifting.reads

    @max_val.setter
    def max_val(self, value: float) -> None:
        pass


class Asking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale if self.scale.requires_grad else x


class OfOther(nn.Module):
    """A block whose branch ends with another module."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.block = made()
        self.block.branch.append(other)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


@pytest.mark.parametrize("other", [Counting, Drifting, Asking, Followed])
def test_modules_that_do_more_than_they_say(other: Callable[[], nn.Module]) -> None:
    torch.manual_seed(1)
    stock = OfOther(nn.Identity() if other is Followed else other()).to(memory_format=LAST).eval()
    model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
    Drifting.reads = 0
    for i in range(6):
        x = inputs()
        results = []
        for m in (stock, model):
            Drifting.reads = i
            with torch.no_grad():
                results.append(m(x))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    if other is Counting:
        assert model.block.branch[-1].calls == 6
    if other is Asking:
        for m in (stock, model):
            m.block.branch[-1].scale.requires_grad_(False).fill_(2)
        compare(stock, model)


def test_a_module_below_itself() -> None:
    stock, _ = replaying()
    stock.tail.parent = nn.Sequential()
    stock.tail.parent.append(stock)
    with torch.no_grad():
        model = opswap.freeze(opswap.swap(copy.deepcopy(stock)))
        for _ in range(5):
            compare(stock, model)


def test_errors_of_record_calls() -> None:
    for wrong in ((), (1,), ((),), ([], [])):
        with pytest.raises(TypeError):
            _core.record_calls(*wrong)
    assert not _core.recording()
