# SPDX-License-Identifier: MIT
"""Recorded calls of models whose numbers come from values, or from what a parameter's memory is."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap import _core
from opswap.swap.replay.recorder import NotRecordedError, record
from replay_cases import kept, plans
from threads import meanwhile

BATCH, CHANNELS, SIDE = 2, 8, 8


class Shuffled(nn.Module):
    """A convolution, a normalisation and a shuffle, which is what `swap` replaces."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu()
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Model(nn.Module):
    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.core = Shuffled(nn.BatchNorm2d(CHANNELS) if norm is None else norm)
        self.fc = nn.Linear(CHANNELS, 3)
        self.table = nn.Parameter(torch.ones(4, CHANNELS))
        self.register_buffer("mask", torch.ones(CHANNELS, dtype=torch.bool))
        self.register_buffer("end", torch.tensor(3))


class Masked(Model):
    """A mask as an argument, and its count."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        z = self.core(x).mean((2, 3))[mask]
        return z.sum(0) / z.shape[0]


class Packed(Model):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        tokens = self.core(x).flatten(2).transpose(1, 2)[mask]
        return self.fc(tokens).view(tokens.shape[0], 3)


class MaskedByBuffer(Model):
    def forward(self, x: Tensor) -> Tensor:
        z = self.core(x)[:, self.mask]
        return z.sum(1) / z.size(1)


class SlicedToLargest(Model):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.core(x).flatten(2)[:, :, : lengths.max()] * 1.0


class SlicedByBuffer(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.core(x).flatten(2)[:, :, : self.end + 1] * 1.0


class Viewed(Model):
    """A number of torch's, given as a tensor."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        return self.core(x).reshape(rows, -1).sum(1)


class Split(Model):
    def forward(self, x: Tensor, size: Tensor) -> Tensor:
        parts = self.core(x).split(size, 1)
        return parts[0] * len(parts)


class Joined(Model):
    """A dimension as a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.core(x)
        return torch.cat([y, y], dim=self.end).sum((2, 3)) / y.shape[1]


class Stacked(Model):
    def forward(self, x: Tensor, dim: Tensor) -> Tensor:
        y = torch.stack([self.core(x)] * 3, dim)
        return y * y.shape[1]


class Largest(Model):
    def forward(self, x: Tensor, dim: Tensor) -> Tensor:
        y = self.core(x).max(dim=dim)[0]
        return y * y.shape[1]


class TimesSize(Model):
    """A number that is asked for by a tensor."""

    def forward(self, x: Tensor, dim: Tensor) -> Tensor:
        y = self.core(x)
        return y * y.size(dim) + y.stride(dim)


class TimesSizeByBuffer(Model):
    def forward(self, x: Tensor) -> Tensor:
        y = self.core(x)
        return y * x.flatten(2).size(dim=self.end - 2)


class Strided(Model):
    def forward(self, x: Tensor, stride: Tensor) -> Tensor:
        y = F.conv2d(self.core(x), self.core.conv.weight, None, stride)
        return y * y.shape[2]


class OfDefaultDtype(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.core(x).mean((2, 3)).to((self.end / 2).dtype)


class Cast(Model):
    def __init__(self) -> None:
        super().__init__(nn.GroupNorm(2, CHANNELS))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.core(x.to(self.core.conv.weight.dtype)).mean((2, 3)))


class CastLater(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.core(x).mean((2, 3)).to(self.fc.weight.dtype)


class DividedByRows(Model):
    def forward(self, x: Tensor) -> Tensor:
        return (self.core(x).mean((2, 3)).unsqueeze(1) + self.table).sum(1) / self.table.shape[0]


class TimesStride(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.core(x) * self.core.conv.weight.stride(1)


class TimesOffset(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.core(x).mean((2, 3)) * (1 + x.storage_offset())


class TimesAddress(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.core(x).mean((2, 3)) * (x.data_ptr() // 64 % 97)


class TimesMode(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.core(x).mean((2, 3)) * (1 + x.is_inference())


def images() -> Tensor:
    return torch.randn(BATCH, CHANNELS, SIDE, SIDE)


def _shorter_mask(m: Any) -> None:
    m.mask[:4].fill_(False)


def _later_end(m: Any) -> None:
    m.end.fill_(5)


def _earlier_end(m: Any) -> None:
    m.end.fill_(2)


def _more_rows(m: Any) -> None:
    m.table.data = torch.ones(6, CHANNELS)


def _double(m: Any) -> None:
    m.double()


def _double_head(m: Any) -> None:
    m.fc.double()


def _channels_last(m: Any) -> None:
    m.to(memory_format=torch.channels_last)


Arguments = tuple[Tensor, ...]
_LENGTHS = torch.tensor([3, 4]), torch.tensor([5, 6])
_ENDS = torch.tensor(1), torch.tensor(2)
_MASKS = torch.tensor([True, True]), torch.tensor([True, False])
_TOKENS = torch.ones(BATCH, SIDE * SIDE).bool(), torch.arange(BATCH * SIDE * SIDE).view(BATCH, -1) > 9
# The class, arguments behind the images while it is recorded and later, what changes in between.
CASES: list[tuple[type[Model], Arguments, Arguments, Callable[[Any], None] | None]] = [
    (Masked, _MASKS[:1], _MASKS[1:], None),
    (Packed, _TOKENS[:1], _TOKENS[1:], None),
    (MaskedByBuffer, (), (), _shorter_mask),
    (SlicedToLargest, _LENGTHS[:1], _LENGTHS[1:], None),
    (SlicedByBuffer, (), (), _later_end),
    (Viewed, (torch.tensor(2),), (torch.tensor(4),), None),
    (Split, (torch.tensor(4),), (torch.tensor(2),), None),
    (Joined, (), (), _earlier_end),
    (Stacked, _ENDS[:1], _ENDS[1:], None),
    (Largest, _ENDS[:1], _ENDS[1:], None),
    (TimesSize, _ENDS[:1], _ENDS[1:], None),
    (TimesSizeByBuffer, (), (), lambda m: m.end.fill_(4)),
    (Strided, _ENDS[:1], _ENDS[1:], None),
    (Cast, (), (), _double),
    (CastLater, (), (), _double_head),
    (DividedByRows, (), (), _more_rows),
    (TimesStride, (), (), _channels_last),
]


def _called_often(cls: type[Model], *more: Tensor) -> tuple[nn.Module, nn.Module]:
    """(stock, swapped, called until it would be recorded)."""
    torch.manual_seed(0)
    stock = cls().eval()
    model = opswap.swap(copy.deepcopy(stock), example_inputs=(images(), *more))
    with torch.no_grad():
        for _ in range(6):
            model(images(), *more)
    return stock, model


def _same(stock: nn.Module, model: nn.Module, *given: Tensor) -> None:
    expected = stock(*given)
    found = model(*given)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize(("cls", "first", "later", "change"), CASES)
def test_numbers_that_change(
    cls: type[Model], first: Arguments, later: Arguments, change: Callable[[Any], None] | None
) -> None:
    stock, model = _called_often(cls, *first)
    if change is not None:
        change(stock)
        change(model)
    with torch.no_grad():
        for _ in range(2):
            _same(stock, model, images(), *later)


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("change", [_double_head, _more_rows])
def test_recorded_again(change: Callable[[Any], None]) -> None:
    """What a parameter's memory is decides; after a change another recording is made."""
    stock, model = _called_often(DividedByRows)
    assert plans(model) == 1, kept(model).refused
    change(stock)
    change(model)
    with torch.no_grad():
        _same(stock, model, images())
        assert plans(model) == 0
        for _ in range(8):
            model(images())
        assert plans(model) == 1
        _same(stock, model, images())


@pytest.mark.usefixtures("every_rule_applies")
@pytest.mark.parametrize("cls", [TimesOffset, TimesAddress, TimesMode])
def test_what_differs_between_inputs_of_one_kind(cls: type[Model]) -> None:
    stock, model = _called_often(cls)
    assert plans(model) == 0 and "may differ" in kept(model).refused
    x = images()
    with torch.no_grad():
        _same(stock, model, torch.cat([x, x, x])[BATCH : 2 * BATCH])
    with torch.inference_mode():
        _same(stock, model, x + 0)


@pytest.mark.usefixtures("every_rule_applies")
def test_default_dtype() -> None:
    stock, model = _called_often(OfDefaultDtype)
    assert plans(model) == 1, kept(model).refused
    x = images()
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.no_grad():
            _same(stock, model, x)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        _same(stock, model, x)


class Wrong(Model):
    """Raises if the fourth element of the input is the fourth position of a table that became shorter."""

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x).mean((2, 3))[:, self.end.view(1)]


@pytest.mark.usefixtures("every_rule_applies")
def test_an_error_of_a_recorded_call_is_that_of_the_forward() -> None:
    stock, model = _called_often(Wrong)
    assert plans(model) == 1, kept(model).refused
    with torch.no_grad():
        _same(stock, model, images())
        _later_end(stock), _later_end(model)
        _same(stock, model, images())
        for m in (stock, model):
            m.end.fill_(CHANNELS)
            with pytest.raises(IndexError, match="out of bounds"):
                m(images())
        assert plans(model) == 0
        for m in (stock, model):
            m.end.fill_(1)
        _same(stock, model, images())


class Drawn(Model):
    """draw: what makes random numbers, of the activations."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return self.draw(self.core(x))


def _bernoulli(x: Tensor) -> Tensor:
    return torch.bernoulli(x.sigmoid())


def _attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, None, 0.5)


def _attention_by_name(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


def _exponential(x: Tensor) -> Tensor:
    return torch.empty_like(x).exponential_() * x


@pytest.mark.parametrize("draw", [_bernoulli, _attention, _attention_by_name, _exponential])
def test_a_refused_call_draws_once(draw: Callable[[Tensor], Tensor]) -> None:
    """The generator is where it was when the ordinary forward begins."""
    x = images()
    model = nn.Identity()

    def call(x: Tensor) -> Tensor:
        first = torch.rand(3) * x.sum()  # before the recorder looks
        return draw(x) + first.sum()

    state = torch.random.get_rng_state()
    with pytest.raises(NotRecordedError):
        record(lambda x: draw(x), (x,), model)
    assert torch.equal(torch.random.get_rng_state(), state)
    with pytest.raises(NotRecordedError):
        record(call, (x,), model)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_another_thread_draws_meanwhile() -> None:
    """What it draws does not come again: a call that draws nothing itself leaves the generator alone."""
    drawn: list[int] = []

    def draw() -> None:
        drawn.append(int(torch.randint(1 << 62, (1,))))
        time.sleep(1e-4)

    def call(x: Tensor) -> Tensor:
        for _ in range(20):
            x = F.relu(x + 1)
        return x

    x, model = images(), nn.Identity()
    with meanwhile(draw):
        for _ in range(60):
            with contextlib.suppress(NotRecordedError):
                record(call, (x,), model)
    assert len(drawn) > 10 and len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("placed", [False, True])
def test_kinds_of_tensors(placed: bool) -> None:
    """Of their dtypes, sizes and strides, and where they lie if that is asked for."""
    x = torch.zeros(2, 8, 4, 4)
    kinds = _core.pack_kinds((x,), placed)
    assert _core.are_as((x,), kinds) and _core.are_as((nn.Parameter(x),), kinds)
    assert _core.are_as((torch.ones(2, 8, 4, 4),), kinds) is not placed
    others = (
        x.double(),
        x.to(memory_format=torch.channels_last),
        x[:1],
        x.view(2, 8, 16),
        x.bfloat16(),
        x.half(),
        torch.zeros(2, device="meta"),
        x.to_sparse(),
        1,
    )
    assert not any(_core.are_as((other,), kinds) for other in others)
    assert not _core.are_as((x, x), kinds) and not _core.are_as((), kinds)
    assert _core.are_as((), _core.pack_kinds((), placed))
    both = _core.pack_kinds((x, others[0]), placed)
    assert _core.are_as((x, others[0]), both) and not _core.are_as((others[0], x), both)
    for wrong in ((x, others[6]), (others[7],), (1,)):
        with pytest.raises((RuntimeError, TypeError), match="pack_kinds"):
            _core.pack_kinds(wrong, placed)
    for wrong in ([x], None):
        with pytest.raises(TypeError, match="tuple"):
            _core.pack_kinds(wrong, placed)
        with pytest.raises(TypeError, match="tuple"):
            _core.are_as(wrong, kinds)
    with pytest.raises(TypeError, match="packed"):
        _core.are_as((x,), _core.pack_seals(()))


def test_a_tensor_that_gets_other_memory() -> None:
    x = nn.Parameter(torch.zeros(8))
    kinds, places = _core.pack_kinds((x,), False), _core.pack_kinds((x,), True)
    x.data = torch.zeros(8)
    assert _core.are_as((x,), kinds) and not _core.are_as((x,), places)
    x.data = torch.zeros(9)
    assert not _core.are_as((x,), kinds)
