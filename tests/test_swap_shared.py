# SPDX-License-Identifier: MIT
"""Rule shared_activation: what several branches compute of one tensor runs once, and everything else as it was."""

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
from opswap.swap.rules import DEFAULT
from step import outputs_and_gradients, saved_bytes
from swapping import images

RULE = "shared_activation"
RULES = [r for r in DEFAULT if r.name == RULE]
Act = Callable[[Any, Tensor], Tensor]


class Branch(nn.Module):
    """Begins with an activation, as the branches of NASNet's and DARTS's cells."""

    def __init__(self, act: Act | None = None) -> None:
        super().__init__()
        self.act, self.conv = nn.ReLU(), nn.Conv2d(12, 12, 1)
        self.apply_act = act

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(self.act(x) if self.apply_act is None else self.apply_act(self, x))
        return y


class Below(nn.Module):
    """Begins with a block that begins with an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Branch(), Branch()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.first(x))
        return y


class Cell(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(12, 12, 1)
        self.branches = nn.ModuleList(branches)
        self.pool, self.skip = nn.AvgPool2d(3, 1, 1), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.pool(x) + self.skip(x)
        for branch in self.branches:
            y = y + branch(x)
        return y


def sequential() -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(12, 12, 1, bias=False), nn.BatchNorm2d(12))


def swapped(stock: nn.Module, rules: Any = RULES) -> nn.Module:
    return opswap.swap(copy.deepcopy(stock), rules=rules, strict=True)


def shared(model: nn.Module) -> int:
    return sum(s.rule == RULE for s in opswap.report(model).swapped)


def activations(model: nn.Module, x: Tensor, name: str = "aten::relu") -> int:
    with torch.profiler.profile() as profile:
        model(x)
    return sum(e.count for e in profile.key_averages() if e.key == name)


def check(model: nn.Module, stock: nn.Module, x: Tensor | None = None) -> None:
    x = images() if x is None else x
    mine, theirs = (list(outputs_and_gradients(m, x)) for m in (model, stock))
    largest = max(float(b.abs().max()) for b in theirs if b is not None)  # biases have sums that cancel
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * max(largest, 1))
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "act",
    [
        None,
        lambda s, x: F.relu(x),
        lambda s, x: torch.relu(x),
        lambda s, x: x.relu(),
        lambda s, x: F.leaky_relu(x, 0.2),
        lambda s, x: F.relu6(x),
        lambda s, x: F.silu(x),
        lambda s, x: F.gelu(x, approximate="tanh"),
    ],
    ids=["module", "F.relu", "relu", "method", "leaky_relu", "relu6", "silu", "gelu"],
)
@pytest.mark.parametrize("training", [True, False])
def test_branches_share(act: Act | None, training: bool) -> None:
    stock = Cell(Branch(act), Branch(act), Branch(act)).train(training)
    model = swapped(stock).train(training)
    assert shared(model) == 1
    check(model, stock)
    check(model, stock, images(3, 12, 5, 5).contiguous(memory_format=torch.channels_last))
    if act is None:
        assert (activations(stock, images()), activations(model, images())) == (3, 1)


def test_the_same_bits_if_all_that_reads_it_is_shared() -> None:
    class Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.third = Branch(), Branch(), Branch()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.left(x) + self.right(x) * self.third(x)
            return y

    stock, x = Only(), images()
    model = swapped(stock)
    assert shared(model) == 1
    x[0] = 0
    for a, b in zip(*(outputs_and_gradients(m, x) for m in (model, stock)), strict=True):
        assert torch.equal(a, b)


def test_sequential_branches_and_blocks_in_blocks() -> None:
    for branches in ((sequential(), sequential()), (Below(), Branch()), (Below(), Below(), sequential())):
        stock = Cell(*branches)
        model = swapped(stock, DEFAULT)
        assert shared(model) == 1, str(opswap.report(model))
        check(model, stock)
        check(copy.deepcopy(model), stock)
        check(pickle.loads(pickle.dumps(model)), stock)


def test_activations_that_differ() -> None:
    stock = Cell(
        Branch(lambda s, x: F.leaky_relu(x, 0.2)), Branch(lambda s, x: F.leaky_relu(x, 0.1)), Branch()
    )
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert shared(model) == 0
    check(model, stock)


def added(s: Any, x: Tensor) -> Tensor:
    return F.relu(x).add_(1)


def written(s: Any, x: Tensor) -> Tensor:
    return F.relu(x) + x.mul_(2).sum()


@pytest.mark.parametrize("other", [added, written, lambda s, x: F.relu_(x), lambda s, x: F.relu(x, True)])
def test_code_that_writes(other: Act) -> None:
    stock = Cell(Branch(F_relu), Branch(other), Branch(F_relu))
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert shared(model) == 0
    with torch.no_grad():
        x = images()
        assert torch.equal(model(x), stock(x))


def F_relu(s: Any, x: Tensor) -> Tensor:
    return F.relu(x)


class Tells(nn.Module):
    """A module of the user's, which is called between the branches."""

    def __init__(self, do: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.do = do

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.do(x)
        except ValueError:
            return x


def test_a_module_that_is_not_known_runs_in_between() -> None:
    stock = Cell(Branch(), Tells(lambda x: x * 2), Branch())
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert shared(model) == 0
    reasons = [s.reason for s in opswap.report(model).kept if s.rule == RULE]
    assert all("may write" in r or "runs in between" in r for r in reasons)
    check(model, stock)


def test_the_result_leaves_the_forward() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return F.relu(x), F.relu(x)

    model = opswap.swap(Both(), rules=RULES)
    a, b = model(images())
    assert shared(model) == 0 and a.data_ptr() != b.data_ptr()


def test_a_hook_before_the_swap() -> None:
    stock = Cell(Branch(), Branch())
    stock.branches[1].act.register_forward_hook(lambda m, a, y: y * 2)
    model = opswap.swap(copy.deepcopy(stock), rules=RULES)
    assert shared(model) == 0
    check(model, stock)


def hook(m: Any) -> None:
    m.branches[1].act.register_forward_hook(lambda m, a, y: y * 2)


def hook_between(m: Any) -> None:
    """Sees that the first branch is done before the second begins."""
    m.branches[0].conv.register_forward_hook(
        lambda _, a, y: m.branches[1].act.__setattr__("inplace", False) or y
    )


CHANGES: dict[str, Callable[[Any], Any]] = {
    "hook": hook,
    "hook before": lambda m: m.branches[0].act.register_forward_pre_hook(lambda m, a: (a[0] - 1,)),
    "hook in between": hook_between,
    "another activation": lambda m: setattr(m.branches[1], "act", nn.Tanh()),
    "another class": lambda m: setattr(m.branches[1].act, "__class__", nn.Sigmoid),
    "another branch": lambda m: m.branches.append(Branch()),
    "another forward": lambda m: setattr(m.branches[1], "forward", lambda x: x * 3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_changes_later(change: Callable[[Any], Any]) -> None:
    stock = Cell(Branch(), Branch(), Branch())
    model = swapped(stock)
    for m in (stock, model):
        torch.manual_seed(0)
        change(m)
    check(model, stock)


def test_in_place_later() -> None:
    """In a step torch refuses it, since the pool has kept what it writes to."""
    stock = Cell(Branch(), Branch(), Branch())
    model, x = swapped(stock), images()
    for m in (stock, model):
        m.branches[2].act.inplace = True
    with torch.no_grad():
        assert torch.equal(model(x), stock(x))
    with pytest.raises(RuntimeError, match="inplace"):
        model(x).sum().backward()


def test_one_result_is_kept_for_the_backward() -> None:
    stock, x = Cell(Branch(), Branch(), Branch()), images(8, 12, 16, 16)
    model = swapped(stock)
    assert saved_bytes(lambda: model(x)) == saved_bytes(lambda: stock(x)) - 2 * x.nbytes


def test_double_backward_and_compile() -> None:
    stock, x = Cell(Branch(), Branch()).double(), images(1, 12, 3, 3).double().requires_grad_()
    model = swapped(stock)
    for order in (1, 2):
        results = []
        for m in (stock, model):
            grad = m(x).square().sum()
            for _ in range(order):
                (grad,) = torch.autograd.grad(grad.sum(), x, create_graph=True)
            results.append(grad)
        torch.testing.assert_close(*results)
    compiled = torch.compile(stock, backend="opswap")
    torch.testing.assert_close(compiled(x), stock(x))


class Apart(nn.Module):
    """Two activations of one tensor, and a module that is called between them."""

    def __init__(self, *acts: nn.Module) -> None:
        super().__init__()
        self.stem, self.between = nn.Conv2d(12, 12, 1), nn.Conv2d(12, 12, 1)
        self.first, self.second = acts

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        z = self.first(y) + self.between(x)
        return z + self.second(y)


@pytest.mark.parametrize("called", [False, True])
def test_a_later_hook_in_between_changes_an_activation(called: bool) -> None:
    """Then the forward runs its own code."""
    stock = Apart(nn.LeakyReLU(0.5), nn.LeakyReLU(0.5))
    model = opswap.swap(copy.deepcopy(stock))
    assert RULE in {s.rule for s in opswap.report(model).swapped}
    x = torch.randn(2, 12, 8, 8)
    for m in (stock, model):
        if called:
            m(x)
        m.between.register_forward_hook(lambda *_, act=m.second: setattr(act, "negative_slope", 0.0))
    for _ in range(2):
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
        stock.second.negative_slope = model.second.negative_slope = 0.5
    assert "hooks on between" in str(opswap.explain(model, x))


def test_activations_without_numbers_share_around_a_module() -> None:
    stock = Apart(nn.ReLU(), nn.ReLU())
    model = opswap.swap(copy.deepcopy(stock))
    assert RULE in {s.rule for s in opswap.report(model).swapped}
    x = torch.randn(2, 12, 8, 8)
    for m in (stock, model):
        m.between.register_forward_hook(lambda *_, m=m: setattr(m, "second", nn.Tanh()))
    for _ in range(2):
        torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-5)
