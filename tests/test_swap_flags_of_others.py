# SPDX-License-Identifier: MIT
"""Forwards that read `training` of other modules."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.swap.capture.paths import capture
from spellings import by_size
from swapping import images, same
from threads import meanwhile


class Base(nn.Module):
    """Two layers whose flags a forward may read, and one that it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(12, 12, 1)
        self.first, self.second = nn.Identity(), nn.Dropout(0.5)
        self.name = "first"

    @property
    def layer(self) -> nn.Module:
        return getattr(self, self.name)


class OfAChild(Base):
    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.conv(x), 2 if self.first.training else 3)


class ByText(Base):
    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.conv(x), 2 if getattr(self.first, "training") else 3)  # noqa: B009


class ByAProperty(Base):
    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.conv(x), 2 if self.layer.training else 3)


class OfAVariable(Base):
    def forward(self, x: Tensor) -> Tensor:
        me, self = self, self.first
        return by_size(me.conv(x), 2 if self.training else 3)


class OfEach(Base):
    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.conv(x), 2 if all(m.training for m in self.children()) else 3)


class Counts(Base):
    """The number of layers that train; neither flag alone shows that both matter."""

    def forward(self, x: Tensor) -> Tensor:
        found = 0
        for m in (self.first, self.second):
            found += 1 if m.training else 0
        return by_size(self.conv(x), 3 if found == 1 else 2)


class ReadsInVain(Base):
    """As mmcv's ConvModule: a flag that decides about nothing as long as another attribute is None."""

    fast = None

    def forward(self, x: Tensor) -> Tensor:
        for m in (self.first, self.second):
            if not m.training and self.fast is not None:
                return self.fast(x)
        return by_size(self.conv(x), 2)


class Passes(Base):
    """The mode of a layer and the module's own, passed to torch."""

    def forward(self, x: Tensor) -> Tensor:
        x = by_size(self.conv(x), 2)
        x = F.dropout(x, 0.5, self.second.training)
        return F.dropout(x, 0.5, self.training)


class Asks(nn.Module):
    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.of.training)

    def helps(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training)


class InABlock(Base):
    """The flag is read in a block, whose code is inlined."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Asks(self.second)

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.block(self.conv(x)), 2 if self.training else 3)


class ByAMethod(Base):
    """A method of a block that reads the block's own flag, called by another block."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Asks(nn.Identity())
        self.block.inner = Asks(nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.block.inner.helps(self.block(x)), 2)


class AsksTwice(nn.Module):
    """Its inner block is called, and a method that reads the inner block's flag."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Asks(nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.helps(self.inner(x))


def test_a_flag_of_an_inlined_block_that_another_one_reads() -> None:
    root = nn.Sequential(AsksTwice())
    paths = capture(root, (root[0], root[0].inner))
    assert [p.training for p in paths] == [True, False]
    for path in paths:
        (guard,) = path.guards
        assert "0.inner.training" in str(guard)


class Changes(nn.Module):
    """Ends the training of a layer that it shares."""

    def __init__(self, of: nn.Module) -> None:
        super().__init__()
        self.of = of

    def forward(self, x: Tensor) -> Tensor:
        self.of.train(not self.of.training)
        return x


class ReadsWhatChanges(Base):
    def __init__(self) -> None:
        super().__init__()
        self.changes = Changes(self.first)

    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.changes(self.conv(x)), 2 if self.first.training else 3)


class OfANewModule(Base):
    def forward(self, x: Tensor) -> Tensor:
        return by_size(self.conv(x), 2 if nn.ReLU().training else 3)


CAPTURED = (OfAChild, ByText, ByAProperty, OfAVariable, OfEach, Counts, ReadsInVain, Passes, InABlock)


def check(model: nn.Module, stock: nn.Module) -> None:
    """Equal for all flags, and for two sizes."""
    modules, others = list(stock.modules()), list(model.modules())
    for flags in itertools.product((True, False), repeat=len(modules)):
        for m, o, flag in zip(modules, others, flags, strict=True):
            m.training = o.training = flag
        for height in (4, 5):
            torch.manual_seed(0)
            x = images(2, 12, height, 8)
            torch.manual_seed(1)
            want = stock(x)
            torch.manual_seed(1)
            assert torch.equal(model(x), want), flags


@pytest.mark.parametrize("kind", CAPTURED)
@pytest.mark.parametrize("training", [True, False])
def test_flags_of_others(kind: type[nn.Module], training: bool) -> None:
    stock = kind().train(training)
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert opswap.report(model).swapped, str(opswap.report(model))
    check(model, stock)


@pytest.mark.parametrize("kind", [ByAMethod, ReadsWhatChanges, OfANewModule])
def test_what_is_kept(kind: type[nn.Module]) -> None:
    stock = kind()
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    check(model, stock)


def test_the_reasons_of_what_is_kept() -> None:
    kept = opswap.report(opswap.swap(ReadsWhatChanges(), exact=True)).kept
    assert "a module that forward calls may write to 'training', which forward reads" in kept[0].reason
    kept = opswap.report(opswap.swap(OfANewModule(), exact=True)).kept
    assert "reads .training of a module that is not a submodule" in kept[0].reason


def test_no_flag_is_asked_that_decides_nothing() -> None:
    """A layer of its own mode runs the fast code; two whose modes differ do not."""
    model = opswap.swap(ReadsInVain(), exact=True)
    x = images(2, 12, 4, 8)
    model.first.eval()
    model.second.eval()
    assert opswap.explain(model, x).outcomes[0].ran == 1
    model.first.train()
    outcome = opswap.explain(model, x).outcomes[0]
    assert outcome.ran == 0
    assert "one_mode(self.first.training, self.second.training) is False (" in outcome.reason
    assert "test_swap_flags_of_others.py:" in outcome.reason


def test_modules_are_as_they_were() -> None:
    opswap.swap(OfAChild())
    assert "training" not in vars(nn.Module)
    assert vars(OfAChild())["training"] is True


def test_other_threads_read_and_write_flags_meanwhile() -> None:
    layer = nn.Identity()

    def run() -> None:
        for flag in (True, False):
            layer.train(flag)
            assert layer.training is flag and vars(layer)["training"] is flag

    with meanwhile(run):
        for _ in range(5):
            stock = Passes()
            same(opswap.swap(copy.deepcopy(stock), exact=True).eval(), stock.eval(), images(2, 12, 4, 8))


def test_a_scripted_layer() -> None:
    stock = OfAChild()
    stock.first = torch.jit.script(nn.Identity())
    model = opswap.swap(copy.deepcopy(stock), exact=True)
    assert "reads .training of a scripted module" in opswap.report(model).kept[0].reason
    for training in (True, False):
        same(model.train(training), stock.train(training), images(2, 12, 4, 8))


def test_compiled() -> None:
    torch._dynamo.reset()
    for kind in (ReadsInVain, OfAChild):
        stock = kind()
        model = torch.compile(opswap.swap(copy.deepcopy(stock), exact=True), backend="eager", fullgraph=True)
        for training in (True, False):
            same(model.train(training), stock.train(training), images(2, 12, 4, 8))
