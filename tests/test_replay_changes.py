# SPDX-License-Identifier: MIT
"""What changes after a call was recorded is noticed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.utils import prune

import opswap
import replay_cases
from replay_cases import Block, compare, replaying, runs

pytestmark = [
    pytest.mark.skipif(opswap.isa.current() not in ("avx2", "avx512"), reason="no chains on this tier"),
    pytest.mark.usefixtures("every_rule_applies"),
]


def own_forward(m: Any) -> None:
    m.branch[2].forward = lambda x: x - 1


def own_forward_of_the_branch(m: Any) -> None:
    m.branch.forward = lambda x: x - 1


def pre_hook(m: Any) -> None:
    m.branch.register_forward_pre_hook(lambda module, given: (given[0] + 1,))


def hook(m: Any) -> None:
    m.tail.register_forward_hook(lambda module, given, output: output * 2)


def hook_of_the_model(m: Any) -> None:
    m.register_forward_hook(lambda module, given, output: output * 2)


def other_child(m: Any) -> None:
    m.branch[7] = nn.Hardtanh(-0.5, 0.5)


def other_branch(m: Any) -> None:
    m.branch = nn.Sequential(nn.Conv2d(16, 16, 1, bias=False))
    nn.init.constant_(m.branch[0].weight, 0.125)


def no_child(m: Any) -> None:
    del m.branch[7]


def more_children(m: Any) -> None:
    m.branch.append(nn.Tanh())


def children_by_other_names(m: Any) -> None:
    m.branch._modules = {f"layer{name}": child for name, child in m.branch._modules.items()}


def names_exchanged(m: Any) -> None:
    m.branch._modules = {{"0": "5", "5": "0"}.get(k, k): child for k, child in m.branch._modules.items()}


def other_option(m: Any) -> None:
    m.slope = 0.25


def other_kind_of_option(m: Any) -> None:
    m.slope = 2


def constant_of_the_instance(m: Any) -> None:
    m.SHIFT = 3.0


def other_eps(m: Any) -> None:
    m.branch[1].eps = 0.5


def other_padding(m: Any) -> None:
    m.branch[3].padding = (0, 0)
    m.branch[3].stride = (1, 1)
    m.branch[3].kernel_size = (1, 1)
    m.branch[3].weight = nn.Parameter(m.branch[3].weight[:, :, 1:2, 1:2].detach().clone())


@torch.no_grad()
def written_weight(m: Any) -> None:
    m.branch[0].weight.mul_(2)


@torch.no_grad()
def written_vector(m: Any) -> None:
    m.branch[1].running_mean.add_(1)


def vector_by_data(m: Any) -> None:
    m.branch[4].weight.data *= 3


@torch.no_grad()
def written_linear(m: Any) -> None:
    m.tail.weight.fill_(0.5)


def other_parameter(m: Any) -> None:
    m.tail.weight = nn.Parameter(torch.full((3, 3), 0.25))


def other_memory(m: Any) -> None:
    m.branch[0].weight.data = m.branch[0].weight.data * 2


def other_memory_of_a_vector(m: Any) -> None:
    m.branch[4].bias.data = m.branch[4].bias.data + 1


def other_memory_of_statistics(m: Any) -> None:
    m.branch[1].running_var.set_(m.branch[1].running_var * 2)


def memory_exchanged(m: Any) -> None:
    mean, var = m.branch[6].running_mean, m.branch[6].running_var
    mean.data, var.data = var.data, mean.data.abs()


def vector_by_numpy(m: Any) -> None:
    m.branch[6].running_mean.numpy()[:] += 1


def part_of_a_long_vector(m: Any) -> None:
    m.branch[1].bias.data = torch.linspace(-1, 1, 64)[8:24]


def other_state(m: Any) -> None:
    m.load_state_dict({k: v * 0.5 if v.is_floating_point() else v for k, v in m.state_dict().items()})


def no_bias(m: Any) -> None:
    m.tail.bias = None


def other_class(m: Any) -> None:
    m.branch[2].__class__ = nn.Sigmoid


def one_in_training(m: Any) -> None:
    m.branch[4].momentum = 0.0
    m.branch[4].training = True


def moved_and_back(m: Any) -> None:
    m.double()
    m.float()
    m.slope = 0.125


def parametrized(m: Any) -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    nn.utils.parametrize.register_parametrization(m.branch[0], "weight", Twice())


def fused_step(m: Any) -> None:
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    torch.optim.SGD(m.parameters(), 0.5, fused=True).step()


def fused_step_of_a_convolution(m: Any) -> None:
    """Which nothing counts: the hook of optimizers drops what was folded."""
    weight = m.branch[0].weight
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], 0.5, fused=True).step()


def pruned(m: Any) -> None:
    prune.l1_unstructured(m.branch[5], "weight", 0.5)


CHANGES = [
    own_forward, own_forward_of_the_branch, pre_hook, hook, hook_of_the_model, other_child, other_branch, no_child,
    more_children, children_by_other_names, names_exchanged, other_option,
    other_kind_of_option, constant_of_the_instance, other_eps, other_padding,
    written_weight, written_vector, vector_by_data, written_linear, other_parameter, other_memory, other_state, no_bias,
    other_memory_of_a_vector, other_memory_of_statistics, memory_exchanged, vector_by_numpy, part_of_a_long_vector,
    other_class, one_in_training, moved_and_back, parametrized, fused_step, fused_step_of_a_convolution, pruned,
]  # fmt: skip


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", ""])
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_is_noticed(change: Callable[[Any], None], frozen: bool) -> None:
    stock, model = replaying(frozen)
    change(stock)
    change(model)
    for _ in range(6):  # also once there is another plan
        compare(stock, model)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", ""])
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_a_change_that_is_taken_back(change: Callable[[Any], None], frozen: bool) -> None:
    """The plan of a model is not the plan of its changed copy."""
    stock, model = replaying(frozen)
    copies = copy.deepcopy((stock, model))
    for m in copies:
        change(m)
    for _ in range(4):
        compare(*copies)
        compare(stock, model)
    assert runs(model)


def other_global(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_cases, "FACTOR", 3.0)


def other_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_cases, "scaled", lambda x: x - 1)


def other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_cases.scaled, "__code__", (lambda x: x + 7).__code__)


def other_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "SHIFT", -1.0)


def a_property_in_place_of_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "slope", property(lambda self: 0.125), raising=False)


def other_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "forward", lambda self, x: x + 1)


def other_forward_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x + 1)


def other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Linear, "__call__", lambda self, x: x - 1)


def other_inner_call(monkeypatch: pytest.MonkeyPatch) -> None:
    call = nn.Module._call_impl
    monkeypatch.setattr(nn.Linear, "_call_impl", lambda self, *args: call(self, *args) + 1)


def other_function_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "linear", lambda x, weight, bias: x - 1)


def other_function_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "leaky_relu", lambda x, slope: x)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", ""])
@pytest.mark.parametrize(
    "change",
    [other_global, other_function, other_code, other_constant, a_property_in_place_of_an_option, other_forward,
     other_forward_of_torch, other_function_of_torch, other_call, other_inner_call,
     other_function_of_a_layer],
)  # fmt: skip
def test_a_change_elsewhere(
    change: Callable[[pytest.MonkeyPatch], None], frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, model = replaying(frozen)
    change(monkeypatch)
    for _ in range(6):
        compare(stock, model)
    monkeypatch.undo()
    for _ in range(6):
        compare(stock, model)


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", ""])
def test_a_hook_for_all_modules(frozen: bool) -> None:
    stock, model = replaying(frozen)
    handle = register_module_forward_pre_hook(
        lambda m, given: (given[0] + 1,) if type(m) is nn.ReLU else None
    )
    try:
        compare(stock, model)
    finally:
        handle.remove()
    compare(stock, model)
