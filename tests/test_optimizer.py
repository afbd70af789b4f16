# SPDX-License-Identifier: MIT
"""An optimizer that goes on where Linears became one GroupedLinear, and the other way round."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opswap import GroupedLinear
from opswap.merge import branches, move_optimizer_state, move_parameters

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("sizes", [(3, 3, 3), (1, 4, 2)])
def test_training_goes_on(name: str, sizes: tuple[int, ...]) -> None:
    """Linears, then one layer, then Linears again, train as the Linears alone do."""
    stock = [nn.Linear(5, o) for o in sizes]
    ours = copy.deepcopy(stock)
    after = nn.Parameter(torch.ones(1))
    x, target = torch.randn(16, 3, 5), torch.randn(16, sum(sizes))

    def loop(linears: list[nn.Linear]) -> Tensor:
        return torch.cat([m(x[:, i]) for i, m in enumerate(linears)], 1)

    def train(optimizer: torch.optim.Optimizer, forward: Any, scale: Tensor) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            (forward() * scale - target).square().mean().backward()
            optimizer.step()

    optimizers = []
    for linears, scale in ((stock, after), (ours, copy.deepcopy(after))):
        optimizers.append(OPTIMIZERS[name]([*(p for m in linears for p in m.parameters()), scale]))
    other = optimizers[1].param_groups[0]["params"][-1]
    train(optimizers[0], lambda: loop(stock), after)
    train(optimizers[1], lambda: loop(ours), other)
    layer = GroupedLinear.from_linears(ours, ragged=True)
    move_optimizer_state(optimizers[1], ours, layer)
    trained = optimizers[1].param_groups[0]["params"]
    assert list(map(id, trained)) == [id(layer.weight), id(layer.bias), id(other)]
    train(optimizers[0], lambda: loop(stock), after)
    train(optimizers[1], lambda: layer(x), other)
    back = layer.to_linears()
    move_optimizer_state(optimizers[1], layer, back)
    train(optimizers[0], lambda: loop(stock), after)
    train(optimizers[1], lambda: loop(back), other)
    assert torch.allclose(after, other, atol=1e-5)
    for a, b in zip(back, stock, strict=True):
        assert torch.allclose(a.weight, b.weight, atol=1e-5) and torch.allclose(a.bias, b.bias, atol=1e-5)


def test_a_module_list_is_a_list() -> None:
    linears = nn.ModuleList(nn.Linear(3, 2) for _ in range(2))
    optimizer = torch.optim.SGD(linears.parameters(), lr=0.1, momentum=0.9)
    sum(m(torch.randn(4, 3)).sum() for m in linears).backward()
    optimizer.step()
    momentum = torch.cat([optimizer.state[m.weight]["momentum_buffer"] for m in linears])
    layer = GroupedLinear.from_linears(linears)
    move_optimizer_state(optimizer, linears, layer)
    assert torch.equal(optimizer.state[layer.weight]["momentum_buffer"].flatten(0, 1), momentum)
    back = nn.ModuleList(layer.to_linears())
    move_optimizer_state(optimizer, layer, back)
    assert torch.equal(torch.cat([optimizer.state[m.weight]["momentum_buffer"] for m in back]), momentum)


def test_optimizer_state_that_cannot_be_joined() -> None:
    linears = [nn.Linear(3, 2) for _ in range(2)]
    layer = GroupedLinear.from_linears(linears)

    def adam(*groups: Any) -> torch.optim.Adam:
        return torch.optim.Adam([{"params": list(g)} for g in groups])

    both = [p for m in linears for p in m.parameters()]
    cases: list[tuple[torch.optim.Optimizer, str]] = [
        (adam(linears[0].parameters(), linears[1].parameters()), r"groups \[0, 1\] cannot be joined"),
        (adam(linears[0].parameters()), r"size \(2, 3\) does not belong"),
        (adam([*both, layer.weight]), r"new parameter of size \(2, 2, 3\) already"),
    ]
    stepped = adam(both)
    for m in linears:
        m(torch.randn(1, 3)).sum().backward()
        stepped.step()
    cases.append((stepped, r"step of parameter 1 is 1.* of parameter 0 2"))
    for optimizer, message in cases:
        before = copy.deepcopy(optimizer.state_dict())
        with pytest.raises(ValueError, match=message):
            move_optimizer_state(optimizer, linears, layer)
        after = optimizer.state_dict()
        assert str(after) == str(before)
    with pytest.raises(ValueError, match=r"6 elements .* cannot become 12"):
        move_parameters(adam(both), [([linears[0].weight], [layer.weight])])
    with pytest.raises(ValueError, match=r"\['weight', 'bias'\], target has \['weight'\]"):
        move_optimizer_state(adam(both), linears, GroupedLinear(3, 2, 2, bias=False))
    factored = torch.optim.Adafactor(both)
    for p in both:
        p.grad = torch.ones_like(p)
    factored.step()
    with pytest.raises(TypeError, match="'row_var' of parameter 0 is not elementwise"):
        move_optimizer_state(factored, linears, layer)


class Mixed(nn.Module):
    """A branch with what is hard to carry: channels_last weights, a scalar, a frozen layer, norms."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Conv2d(4, 4, 1).requires_grad_(False)
        self.conv = nn.Conv2d(4, 6, 3, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.scale = nn.Parameter(torch.rand(()))
        self.gamma = nn.Parameter(torch.rand(6, 1, 1))
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(self.frozen(x))) * self.gamma * self.scale


ELEMENTWISE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "sgd_fused": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adam_foreach": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, fused=True),
    "adam_tensor_lr": lambda p: torch.optim.Adam(p, torch.tensor(0.01), foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.05, lr_decay=0.01, initial_accumulator_value=0.1),
    "adagrad_fused": lambda p: torch.optim.Adagrad(p, 0.05, fused=True),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01, t0=2),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
}


def decay_groups(modules: Sequence[nn.Module]) -> list[dict[str, Any]]:
    """Those of timm: no decay for norms, biases and scalars; frozen parameters are left out."""
    trained = [p for m in modules for p in m.parameters() if p.requires_grad]
    flat, others = [p for p in trained if p.ndim <= 1], [p for p in trained if p.ndim > 1]
    return [{"params": flat, "weight_decay": 0.0}, {"params": others, "lr": 0.02}]


def steps(forward: Callable[[], Tensor], optimizer: torch.optim.Optimizer, number: int = 3) -> None:
    for _ in range(number):
        optimizer.zero_grad()
        (forward() - 1).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_elementwise_optimizer_goes_on(name: str, seed: int) -> None:
    """Three steps as a loop, three merged and three as a loop again, against nine of the loop."""
    modules = [Mixed().double() for _ in range(3)]
    stock = copy.deepcopy(modules)
    make = ELEMENTWISE[name]
    expected, optimizer = make(decay_groups(stock)), make(decay_groups(modules))
    x = torch.randn(8, 4, 7, 6, dtype=torch.float64).contiguous(memory_format=torch.channels_last)

    def loop(branches: Sequence[nn.Module]) -> Tensor:
        return torch.stack([m(x) for m in branches], 1)

    steps(lambda: loop(stock), expected, 9)
    steps(lambda: loop(modules), optimizer)
    known = [copy.deepcopy(optimizer.state[p]) for m in modules for p in m.parameters() if p.requires_grad]
    merged = branches(modules)
    move_optimizer_state(optimizer, modules, merged)
    for p in merged.parameters():
        for value in optimizer.state.get(p, {}).values():
            if isinstance(value, Tensor) and value.shape == p.shape and value.dim():
                assert value.stride() == p.stride()
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {
        id(p) for p in merged.parameters() if p.requires_grad
    }
    back = merged.split_back()
    twin = copy.deepcopy(optimizer.state_dict())
    move_optimizer_state(optimizer, merged, back)
    carried = [optimizer.state[p] for m in back for p in m.parameters() if p.requires_grad]
    for ours, theirs in zip(carried, known, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(torch.as_tensor(ours[k]), torch.as_tensor(theirs[k])) for k in theirs)
    merged = branches(back)
    move_optimizer_state(optimizer, back, merged)
    assert str(optimizer.state_dict()) == str(twin)
    steps(lambda: merged(x), optimizer)
    back = merged.split_back()
    move_optimizer_state(optimizer, merged, back)
    steps(lambda: loop(back), optimizer)
    for ours, theirs in zip(back, stock, strict=True):
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-8)
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("name", ["momentum", "adam", "adam_fused", "adagrad", "nadam", "asgd", "rmsprop"])
def test_parameters_that_were_not_stepped_yet(name: str) -> None:
    modules = [Mixed() for _ in range(2)]
    optimizer = ELEMENTWISE[name]([p for m in modules for p in m.parameters()])
    merged = branches(modules)
    move_optimizer_state(optimizer, modules, merged)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in merged.parameters()]
    x = torch.randn(4, 4, 5, 5)
    steps(lambda: merged(x), optimizer)
    back = merged.split_back()
    move_optimizer_state(optimizer, merged, back)
    steps(lambda: torch.stack([m(x) for m in back], 1), optimizer)


def test_a_momentum_of_some_branches_alone() -> None:
    """A branch whose parameters had no gradient yet has a momentum of zeros."""
    modules = [nn.Linear(3, 2) for _ in range(2)]
    stock = copy.deepcopy(modules)
    x = torch.randn(5, 3)
    both = [
        torch.optim.SGD([p for m in ms for p in m.parameters()], 0.1, momentum=0.9) for ms in (modules, stock)
    ]
    steps(lambda: modules[1](x), both[0])
    steps(lambda: stock[1](x), both[1])
    both[0].zero_grad()
    merged = branches(modules)
    move_optimizer_state(both[0], modules, merged)
    steps(lambda: merged(x), both[0])
    steps(lambda: torch.stack([m(x) for m in stock], 1), both[1])
    for ours, theirs in zip(merged.split_back(), stock, strict=True):
        torch.testing.assert_close(ours.weight, theirs.weight)
    dampened = torch.optim.SGD([p for m in stock for p in m.parameters()], 0.1, momentum=0.9, dampening=0.5)
    steps(lambda: stock[1](x), dampened)
    dampened.zero_grad()
    with pytest.raises(
        ValueError, match=r"parameter 1 has the state \['momentum_buffer'\], parameter 0 has \[\]"
    ):
        move_optimizer_state(dampened, stock, branches(stock))


def test_groups_of_named_parameters() -> None:
    """torch's optimizers keep names beside parameters that are given with them."""
    net = nn.Module()
    net.stem, net.heads = nn.Linear(4, 3), nn.ModuleList([nn.Linear(3, 2) for _ in range(3)])
    optimizer = torch.optim.SGD(net.named_parameters(), 0.1)
    before = list(optimizer.param_groups[0]["param_names"])
    heads = net.heads
    net.heads = branches(heads)
    move_optimizer_state(optimizer, heads, net.heads)
    group = optimizer.param_groups[0]
    assert group["param_names"] == ["stem.weight", "stem.bias", "heads.0.weight", "heads.0.bias"]
    assert group["param_names"] == [name for name, _ in net.named_parameters()]
    assert [id(p) for p in group["params"]] == [id(p) for p in net.parameters()]
    merged, net.heads = net.heads, nn.ModuleList(net.heads.split_back())
    move_optimizer_state(optimizer, merged, net.heads)
    assert group["param_names"] == before
    names = {id(p): name for name, p in net.named_parameters()}
    assert group["param_names"] == [names[id(p)] for p in group["params"]]
    optimizer.load_state_dict(optimizer.state_dict())


def test_the_order_after_a_round_trip() -> None:
    """That of the model, so that a checkpoint of the optimizer can be loaded into one that is built anew."""
    net = nn.Module()
    net.stem, net.head = nn.Linear(4, 4), nn.Linear(4, 2)
    net.heads = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(3))
    parts = [net.heads, net.stem, net.head]

    def make() -> torch.optim.Optimizer:
        flat = [p for m in parts for p in m.parameters() if p.ndim <= 1]
        others = [p for m in parts for p in m.parameters() if p.ndim > 1]
        groups = [{"params": flat}, {"params": [*others[-2:], *others[:-2]], "lr": 0.02}]
        return torch.optim.SGD(groups, 0.1, momentum=0.9)

    optimizer, x = make(), torch.randn(5, 4)
    steps(lambda: net.head(torch.stack([m(net.stem(x)) for m in net.heads], 1)), optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    merged = branches(net.heads)
    move_optimizer_state(optimizer, net.heads, merged)
    net.heads = parts[0] = nn.ModuleList(merged.split_back())
    move_optimizer_state(optimizer, merged, net.heads)
    places = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    assert places == [[id(p) for p in group["params"]] for group in make().param_groups]
    after = optimizer.state_dict()["state"]
    assert str(dict(sorted(after.items()))) == str(state["state"])


@pytest.mark.parametrize("between", [False, True])
def test_parameters_that_are_split_keep_the_order_of_groups(between: bool) -> None:
    """Parameters between them stay between them; each side has the order of the model."""
    modules = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)]
    stem = nn.Parameter(torch.zeros(1))
    first, second = ([p for m in modules for p in m[i].parameters()] for i in (0, 1))
    optimizer = torch.optim.SGD([*first, *([stem] if between else []), *second], 0.1)
    merged = branches(modules)
    move_optimizer_state(optimizer, modules, merged)
    back = merged.split_back()
    move_optimizer_state(optimizer, merged, back)
    expected = [p for m in back for p in m.parameters()]
    if between:
        expected = [p for i in (0, 1) for m in back for p in m[i].parameters()]
        expected.insert(len(first), stem)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in expected]


def test_an_optimizer_of_other_parameters() -> None:
    modules = [Mixed() for _ in range(2)]
    merged = branches(modules)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    with pytest.raises(ValueError, match=r"none of the 14 parameters of source belongs to the optimizer"):
        move_optimizer_state(other, modules, merged)
    frozen = [nn.Linear(3, 2).requires_grad_(False) for _ in range(2)]
    move_optimizer_state(other, frozen, branches(frozen))
    # the head's optimizer, where another one has the rest
    head = torch.optim.SGD([m.scale for m in modules], 0.1)
    move_optimizer_state(head, modules, merged)
    assert [id(p) for p in head.param_groups[0]["params"]] == [id(merged.scale)]
    partly = torch.optim.SGD([modules[0].scale], 0.1)
    with pytest.raises(ValueError, match=r"a parameter of size \(\) does not belong to the optimizer"):
        move_optimizer_state(partly, modules, merged)


def test_optimizers_that_are_not_elementwise() -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(m(torch.ones(2, 3)).square().sum() for m in linears)
        loss.backward()
        return loss

    linears = [nn.Linear(3, 2) for _ in range(2)]
    merged = branches(linears)
    everything = [p for m in linears for p in m.parameters()]
    matrices = [m.weight for m in linears]
    biases = [m.bias for m in linears]
    for optimizer, match in (
        (torch.optim.LBFGS(everything), "LBFGS"),
        (torch.optim.Muon(matrices), "Muon"),
        (torch.optim.Adafactor(biases), "Adafactor"),
    ):
        for step in range(2):
            before = str(optimizer.state_dict())
            with pytest.raises(
                (TypeError, ValueError), match=f"{match} is not elementwise" if not step else _NAME
            ):
                move_optimizer_state(optimizer, linears, merged)
            assert str(optimizer.state_dict()) == before
            optimizer.step(closure)


_NAME = "move_optimizer_state"


def test_parameters_that_are_named_twice() -> None:
    linear, target = nn.Linear(3, 2), nn.Linear(3, 4)
    optimizer = torch.optim.SGD(linear.parameters(), 0.1)
    before = str(optimizer.state_dict())
    pair = [nn.Parameter(torch.zeros(2, 3)) for _ in range(2)]
    for moves in (
        [([linear.weight, linear.weight], [target.weight])],
        [([linear.weight], [pair[0]]), ([linear.weight], [pair[1]])],
        [([linear.weight], [pair[0]]), ([linear.bias], [pair[0]])],
        [([linear.weight], [linear.weight])],
    ):
        with pytest.raises(ValueError, match=r"a parameter of size .* is named twice"):
            move_parameters(optimizer, moves)
        assert str(optimizer.state_dict()) == before


def test_counts_of_other_optimizers() -> None:
    """A number per parameter has the size of a parameter of no dimensions; others of the optimizer tell them apart."""

    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            super().step()
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                state["seen"] = state.get("seen", torch.zeros(())) + 1
                state["average"] = torch.zeros_like(p) if "average" not in state else state["average"]

    modules = [Mixed() for _ in range(2)]
    optimizer = Counting([p for m in modules for p in m.parameters() if p.requires_grad], 0.1)
    x = torch.randn(4, 4, 5, 5)
    steps(lambda: torch.stack([m(x) for m in modules], 1), optimizer)
    merged = branches(modules)
    move_optimizer_state(optimizer, modules, merged)
    state = optimizer.state[merged.scale]
    assert state["seen"].shape == () and state["seen"] == 3 and state["average"].shape == (2,)
