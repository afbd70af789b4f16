# SPDX-License-Identifier: MIT
"""Merged modules whose layers are replaced later, and those that meet inputs of other dimensions inside a transform."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from merge_cases import assert_near
from opswap import merge

pytestmark = pytest.mark.usefixtures("one_thread")


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3)
        self.gate = Gate()
        self.drop = nn.Dropout2d(0.5)
        self.tail = nn.Sequential(nn.Conv2d(6, 4, 1), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.drop(self.gate(self.conv(x))))


class Loop(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([m(x) for m in self], 1)


def both(change: Callable[[nn.Module], object]) -> tuple[merge.MergedBranches, Tensor, Tensor]:
    """A merged module, its input, and the output of the loop, each changed in the same way after the merge."""
    branches = [Branch().double().eval() for _ in range(3)]
    merged = merge.branches(branches)
    for module in (merged, *branches):
        change(module)
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    return merged, x, Loop(branches)(x)


ALIKE = {
    "another activation": lambda b: setattr(b.tail, "1", nn.SiLU()),
    "no activation": lambda b: setattr(b.tail, "1", nn.Identity()),
    "no dropout": lambda b: setattr(b, "drop", nn.Identity()),
    "another pool": lambda b: setattr(b.tail, "2", nn.AvgPool2d(2)),
    "padding": lambda b: b.conv.__dict__.update(padding=(1, 1), padding_mode="circular"),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_layer_of_the_same_kind_replaces_one_in_every_branch(name: str) -> None:
    merged, x, expected = both(ALIKE[name])
    assert_near(merged(x).detach(), expected.detach())
    assert_near(Loop(merged.split_back())(x).detach(), expected.detach())


OTHERS = {
    "softmax": (lambda b: setattr(b.tail, "1", nn.Softmax(1)), "a Softmax took the place of the ReLU"),
    "own module": (lambda b: setattr(b.tail, "1", Gate()), "a Gate took the place of the ReLU"),
    "dropout": (lambda b: setattr(b.tail, "1", nn.Dropout(0.5).eval()), "a Dropout took the place"),
    "opened module": (lambda b: setattr(b, "gate", nn.Tanh()), "gate is now a Tanh"),
    "added": (lambda b: b.tail.add_module("3", nn.Tanh()), "the children of tail are"),
    "removed": (lambda b: delattr(b.tail, "2"), "the children of tail are"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_changes_are_errors_until_the_branches_are_merged_anew(name: str) -> None:
    change, message = OTHERS[name]
    merged, x, expected = both(change)
    with pytest.raises((TypeError, RuntimeError), match=message):
        merged(x)
    modules = merged.split_back()
    assert_near(Loop(modules)(x).detach(), expected.detach())
    assert_near(merge.branches(modules)(x).detach(), expected.detach())


def test_a_new_layer_with_tensors_belongs_to_no_branch() -> None:
    merged, x, _ = both(lambda b: setattr(b, "gate", nn.Conv2d(6, 6, 1).double()))
    with pytest.raises(RuntimeError, match="gate is now a Conv2d"):
        merged(x)
    with pytest.raises(ValueError, match="gate is a Conv2d by now, whose weight belongs to no branch"):
        merged.split_back()


def flops(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with FlopCounterMode(display=False) as counter:
        f(x)
    return torch.tensor(counter.get_total_flops(), dtype=torch.float64)


def of_checkpoint(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    checkpoint(f, x, use_reentrant=False).square().sum().backward()
    return x.grad


AROUND: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "vmap": lambda f, x: torch.func.vmap(f)(torch.stack([x, 2 * x])),
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).square().sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "hessian": lambda f, x: torch.func.hessian(lambda y: f(y).square().sum())(x[:1, :2]),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),  # ended the process
    "trace": lambda f, x: torch.jit.trace(f, (x,))(x),
    "checkpoint": of_checkpoint,
    "flops": flops,
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", AROUND)
def test_inputs_of_new_dimensions_are_learned_outside_of_what_runs_the_call(name: str) -> None:
    branches = [nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4), nn.GELU()).double() for _ in range(3)]
    merged = merge.branches(branches)  # for (B, 6)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    actual = AROUND[name](merged, x)
    expected = AROUND[name](Loop(branches), x)
    assert_near(actual.detach(), expected.detach())
