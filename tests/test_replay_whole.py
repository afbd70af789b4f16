# SPDX-License-Identifier: MIT
"""Calls of whole models are recorded: forwards in which nothing is replaced are followed, and do as ever elsewhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from freed import assert_freed_at_once
from nearness import assert_model_as_near
from replay_cases import LAST, compare, kept, made, plans, runs, runs_of
from step import assert_equal, outputs_and_gradients

pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]


class Unit(nn.Module):
    """A convolution, its BatchNorm, an activation: what a rule replaces."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, outputs, 1, bias=False)
        self.bn, self.act = nn.BatchNorm2d(outputs), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Gate(nn.Module):
    """Nothing in it is replaced."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, channels).view(-1, 1, 1))
        self.shift = 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x.mean((2, 3), keepdim=True) * self.weight + self.shift)


class Row(nn.Sequential):
    """A class of its own, which runs its layers as torch's does."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = Row(Unit(24, 48), Unit(48, 24)), Gate(24)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate(self.body(x))


class Network(nn.Module):
    """The model calls blocks; neither it nor a block has a line of its own that a rule replaces."""

    SCALE = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.stem = Unit(16, 24)
        self.blocks = Row(Block(), Block())
        self.head = nn.Linear(24, 5)
        self.slope = 0.25
        self.names = ["stem", "blocks"]  # no code reads it

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x)) * self.SCALE
        return self.head(F.leaky_relu(x, self.slope).mean((2, 3)))


def images(size: int = 16) -> Tensor:
    return torch.randn(2, 16, size, size).contiguous(memory_format=LAST)


def replaying(calls: int = 4) -> tuple[nn.Module, nn.Module]:
    """(stock, swapped with a plan of the whole model)."""
    stock = made(Network)
    model = opswap.swap(copy.deepcopy(stock))
    for _ in range(calls):
        compare(stock, model, images())
    assert plans(model) == 1, kept(model).refused
    assert runs(model)
    return stock, model


def test_one_recording_is_all_that_runs() -> None:
    _, model = replaying()
    inside = [m for m in model.modules() if m is not model and "_opswap_record" in vars(m)]
    assert inside
    assert not any(kept(m).plans for m in inside)
    with torch.no_grad():
        x = images()
        opswap.reset_stats()
        again = model(x)
        counted = opswap.stats()
        kept(model).plans.clear()
        opswap.reset_stats()
        assert torch.equal(model(x), again)
        assert opswap.stats() == counted
    assert counted["kernel"]["conv_chain"] == 3


def test_what_has_no_site_is_not_reported() -> None:
    model = opswap.swap(made(Network))
    assert str(opswap.report(model)) == str(opswap.scan(made(Network)))
    assert all(s.path.endswith(("conv", "bn")) for s in opswap.report(model).swapped)
    for _ in range(4):
        found = opswap.explain(model, images())
        assert {o.path for o in found.outcomes if o.ran} == {o.path for o in found.outcomes} - {"stem.bn"}
        assert all(o.path.endswith(("conv", "bn")) for o in found.outcomes)
        with torch.no_grad():
            model(images())


def test_recorded_calls_alone_leave_the_forward_of_the_class() -> None:
    _, model = replaying()
    x = images()
    assert runs_of(Gate.forward, lambda: model(x)) == 2  # with gradients
    with torch.no_grad():
        assert runs_of(Gate.forward, lambda: model(x)) == 0
        assert runs_of(Gate.forward, lambda: model(x.double().float()[:, :, 1:])) == 2
    model.train()
    assert runs_of(Gate.forward, lambda: model(x)) == 2


def test_training_runs_the_forward_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, model = replaying()
    called: list[str] = []
    forward = Gate.forward
    monkeypatch.setattr(Gate, "forward", lambda self, x: (called.append("gate"), forward(self, x))[1])
    for m in (stock, model):
        m.train()
    x = images()
    for m in (stock, model):
        m(x)
    assert called == ["gate"] * 4
    monkeypatch.undo()
    assert_model_as_near(model, stock, lambda: (images(),), times=4)
    for m in (stock, model):
        m.eval()
    for _ in range(4):
        compare(stock, model, images())
    assert runs(model)


def gate_hook(m: Any) -> None:
    m.blocks[1].gate.register_forward_hook(lambda module, given, output: output * 2)


def block_pre_hook(m: Any) -> None:
    m.blocks[0].register_forward_pre_hook(lambda module, given: (given[0] + 1,))


def hook_of_the_model(m: Any) -> None:
    m.register_forward_hook(lambda module, given, output: output * 2)


def other_option(m: Any) -> None:
    m.slope = 0.75


def option_of_the_gate(m: Any) -> None:
    m.blocks[0].gate.shift = -1.0


def constant_of_the_instance(m: Any) -> None:
    m.SCALE = 3.0


def other_gate(m: Any) -> None:
    m.blocks[0].gate = nn.Tanh()


def one_more_layer(m: Any) -> None:
    m.blocks[1].body.append(nn.Tanh())


def one_block_less(m: Any) -> None:
    del m.blocks[0]


def other_parameter(m: Any) -> None:
    m.blocks[1].gate.weight = nn.Parameter(torch.full((24, 1, 1), 0.25))


@torch.no_grad()
def written_parameter(m: Any) -> None:
    m.blocks[1].gate.weight.mul_(-2)


def own_forward(m: Any) -> None:
    m.blocks[0].gate.forward = lambda x: x - 1


def own_forward_of_the_model(m: Any) -> None:
    m.forward = lambda x: x.mean()


def one_part_trains(m: Any) -> None:
    m.blocks[0].body[0].bn.train()


CHANGES = [
    gate_hook,
    block_pre_hook,
    hook_of_the_model,
    other_option,
    option_of_the_gate,
    constant_of_the_instance,
    other_gate,
    one_more_layer,
    one_block_less,
    other_parameter,
    written_parameter,
    own_forward,
    own_forward_of_the_model,
    one_part_trains,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_are_noticed(change: Callable[[Any], None]) -> None:
    stock, model = replaying()
    for m in (stock, model):
        change(m)
    for _ in range(8):
        compare(stock, model, images())


CLASSES: list[tuple[type, str, Any]] = [
    (Network, "SCALE", 5.0),
    (Network, "forward", lambda self, x: self.stem(x).mean()),
    (Block, "forward", lambda self, x: self.gate(self.body(x))),
    (Gate, "forward", lambda self, x: x + self.weight),
    (Gate, "shift", property(lambda self: 7.0)),
    (Unit, "forward", lambda self, x: self.bn(self.conv(x))),
    (Row, "forward", lambda self, x: self[1](self[0](x)) + 1),
    (Row, "__iter__", lambda self: iter((nn.Identity(),))),
    (Block, "__call__", lambda self, x: self.forward(x) * 2),
]


@pytest.mark.parametrize(("cls", "name", "value"), CLASSES, ids=lambda v: getattr(v, "__name__", None))
def test_changes_of_classes_are_noticed(
    cls: type, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, model = replaying()
    monkeypatch.setattr(cls, name, value, raising=False)
    for _ in range(6):
        compare(stock, model, images())
    monkeypatch.undo()
    for _ in range(6):
        compare(stock, model, images())


def test_copies_pickles_and_unswap() -> None:
    stock, model = replaying()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.double().float()):
        for _ in range(6):
            compare(stock, other, images())
        assert runs(other)
    opswap.unswap(model)
    assert all("forward" not in vars(m) and "_opswap_record" not in vars(m) for m in model.modules())
    compare(stock, model, images())
    opswap.swap(model)
    for _ in range(4):
        compare(stock, model, images())
    assert runs(model)


def test_a_second_swap_changes_nothing() -> None:
    _, model = replaying()
    plan = next(iter(kept(model).plans.values()))
    opswap.swap(model)
    assert next(iter(kept(model).plans.values())) is plan


class Stateful(Gate):
    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "shift": self.shift}


@pytest.mark.parametrize("gate", [lambda: Stateful(24), lambda: nn.TransformerEncoderLayer(24, 2)])
def test_who_gets_no_forward(gate: Callable[[], nn.Module]) -> None:
    """Modules that control how they are copied, and those of torch."""
    model = made(Network)
    model.blocks[0].gate = gate()
    opswap.swap(model)
    assert "forward" not in vars(model.blocks[0].gate)
    assert "forward" in vars(model.blocks[1].gate)


def test_a_model_without_sites_stays_as_it_is() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = Gate(16)

        def forward(self, x: Tensor) -> Tensor:
            return self.gate(x) + 1

    model = opswap.swap(Plain())
    assert all("forward" not in vars(m) for m in model.modules())


@pytest.mark.parametrize("frozen", [False, True], ids=["", "frozen"])
def test_large_inputs_are_recorded_in_parts(frozen: bool) -> None:
    """A recording of the whole model would hold every result in it at once."""
    stock = made(Network)
    model = opswap.swap(copy.deepcopy(stock))
    if frozen:
        opswap.freeze(model)
    for _ in range(5):
        compare(stock, model, images(100))
    assert not plans(model)
    assert bool(kept(model.stem).plans) is frozen


def test_a_part_that_replaces_nothing_is_not_recorded_for_itself() -> None:
    """It would cost more than it brings."""
    stock, model = replaying()
    for _ in range(6):
        compare(stock.blocks[0].gate, model.blocks[0].gate, torch.randn(2, 24, 8, 8))
        compare(stock.blocks[0].body, model.blocks[0].body, torch.randn(2, 24, 8, 8).to(memory_format=LAST))
    assert not kept(model.blocks[0].gate).plans
    assert kept(model.blocks[0].body).plans


class Wide(nn.Module):
    """Small images, of which it makes a lot."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList([Unit(16, 512), *(Unit(512, 512) for _ in range(6))])
        self.last = Unit(512, 16)

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            x = unit(x) * 2
        return self.last(x)


def test_what_needs_much_memory_is_recorded_in_parts() -> None:
    """Ten results of 17 MB and more, of an input of 1 MB."""
    stock = Wide().to(memory_format=LAST).eval()
    model = opswap.swap(copy.deepcopy(stock))
    for _ in range(4):
        compare(stock, model, images(90))
    assert not plans(model)
    assert "more than 256 MB" in kept(model).refused
    assert kept(model.units[0]).plans


def test_what_cannot_be_followed_is_recorded_around() -> None:
    class Unseen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 1e30 else x * 2

    stock = made(Network)
    stock.blocks[0].gate = Unseen().eval()
    model = opswap.swap(copy.deepcopy(stock))
    for _ in range(6):
        compare(stock, model, images())
    assert not plans(model)
    assert "has not been followed" in kept(model).refused
    assert kept(model.stem).plans
    assert kept(model.blocks[1]).plans


@pytest.mark.parametrize("name", ["__iter__", "forward"])
def test_a_sequential_with_code_of_its_own(name: str) -> None:
    class Own(nn.Sequential):
        def __iter__(self) -> Any:
            return reversed(list(self._modules.values())) if name == "__iter__" else super().__iter__()

        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            return x if x.sum() > 1e30 or name == "__iter__" else x * 2

    stock = made(Network)
    stock.blocks = Own(Block(), nn.Tanh())
    model = opswap.swap(copy.deepcopy(stock))
    for _ in range(6):
        compare(stock, model, images())


def test_compiled_exported_and_scripted_forwards() -> None:
    stock, model = replaying()
    x = images()
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), stock(x), rtol=1e-4, atol=1e-4)
        exported = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(exported(x), stock(x), rtol=1e-4, atol=1e-4)
    traced = torch.fx.symbolic_trace(model)
    compare(stock, traced, x)


def test_gradients_are_those_of_a_swap_without_recordings() -> None:
    stock, model = replaying()
    fresh = opswap.swap(copy.deepcopy(stock))
    x = images()
    assert_equal(outputs_and_gradients(model.train(), x), outputs_and_gradients(fresh.train(), x))


def test_nothing_is_kept_alive() -> None:
    assert_freed_at_once(lambda: replaying()[1])


TEMPLATE = torch.linspace(-1, 1, 2 * 16 * 8 * 8).view(2, 16, 8, 8).contiguous(memory_format=LAST)


class Compared(nn.Module):
    """An input, compared with a tensor that the model has itself, or that lies elsewhere."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own, self.unit = own, Unit(16, 24)
        self.register_buffer("template", TEMPLATE.clone(memory_format=torch.preserve_format))

    def forward(self, x: Tensor) -> Tensor:
        return self.unit(x) - self.unit(self.template if self.own else TEMPLATE)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("own", [True, False])
def test_an_input_that_code_reads_from_elsewhere_too(own: bool, frozen: bool) -> None:
    stock = made(lambda: Compared(own))
    model = opswap.swap(copy.deepcopy(stock))
    if frozen:
        opswap.freeze(model)
    with torch.no_grad():
        for _ in range(6):
            same: Any = model.template if own else TEMPLATE
            assert float(model(same).abs().max()) < 1e-5
        for _ in range(3):
            compare(stock, model, images(8))


def test_a_call_that_returns_its_input() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unit = Unit(16, 24)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, self.unit(x)

    stock = made(Both)
    model = opswap.swap(copy.deepcopy(stock))
    x = images(8)
    with torch.no_grad():
        for _ in range(6):
            first, second = model(x)
            assert first is x
            torch.testing.assert_close(second, stock(x)[1], rtol=1e-4, atol=1e-4)
