# SPDX-License-Identifier: MIT
"""A merged module trains as the loop does, and takes the optimizer's state along in both directions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from merge_cases import CASES, make, without_dropout
from nearness import Quantities, assert_as_near, named
from opswap import merge, models

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 20
# Relative, after 20 steps in float64: the order of summation differs, and every step carries it on.
TOLERANCE = 1e-8

OPTIMIZERS: dict[str, Callable[[Sequence[Tensor]], Optimizer]] = {
    "sgd": lambda ps: SGD(ps, lr=0.02, momentum=0.9, weight_decay=1e-4),
    "sgd_plain": lambda ps: SGD(ps, lr=0.02),
    "adam": lambda ps: Adam(ps, lr=1e-3, amsgrad=True),
    "adamw": lambda ps: AdamW(ps, lr=1e-3),
    "rmsprop": lambda ps: RMSprop(ps, lr=1e-3),
}


def parameters(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    return [p for m in modules for p in m.parameters()]


def train(
    forward: Callable[[Tensor], Tensor], optimizer: Optimizer, batches: Sequence[Tensor]
) -> list[float]:
    losses = []
    for x in batches:
        optimizer.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run_loop(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([m(x).flatten(1) for m in modules], 1)


def assert_same(ours: Sequence[nn.Module], theirs: Sequence[nn.Module]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        for (key, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
            torch.testing.assert_close(
                x, y, rtol=TOLERANCE, atol=TOLERANCE, msg=lambda m, key=key: f"{key}: {m}"
            )


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", ["bottleneck", "linear", "head", "basic_down"])
def test_trains_as_the_loop_with_the_optimizer_carried_over(name: str, kind: str, seed: int) -> None:
    """A third of the steps in the loop, a third merged, a third in the loop again, against a loop all the way."""
    modules = [without_dropout(m).double() for m in make(name, 3)]
    batches = [torch.randn(4, *CASES[name][1], dtype=torch.float64) for _ in range(STEPS)]
    reference = copy.deepcopy(modules)
    expected = train(run_loop(reference), OPTIMIZERS[kind](parameters(reference)), batches)

    optimizer = OPTIMIZERS[kind](parameters(modules))
    losses = train(run_loop(modules), optimizer, batches[:7])
    merged = merge.branches(modules)
    merge.move_optimizer_state(optimizer, modules, merged)
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {
        id(p) for p in merged.parameters()
    }
    losses += train(lambda x: merged(x).flatten(1), optimizer, batches[7:14])
    back = merged.split_back()
    merge.move_optimizer_state(optimizer, merged, back)
    losses += train(run_loop(back), optimizer, batches[14:])

    torch.testing.assert_close(losses, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert_same(back, reference)


def test_optimizer_state_is_bit_equal(seed: int) -> None:
    """There and back without a step in between changes no bit."""
    modules = make("bottleneck", 3)
    optimizer = Adam(parameters(modules), lr=1e-3)
    train(run_loop(modules), optimizer, [torch.randn(2, 8, 5, 5) for _ in range(3)])
    before = [copy.deepcopy(optimizer.state[p]) for p in parameters(modules)]
    merged = merge.branches(modules)
    merge.move_optimizer_state(optimizer, modules, merged)
    assert all(optimizer.state[p]["exp_avg"].shape == p.shape for p in merged.parameters())
    back = merged.split_back()
    merge.move_optimizer_state(optimizer, merged, back)
    for p, state in zip(parameters(back), before, strict=True):
        assert all(torch.equal(optimizer.state[p][key], value) for key, value in state.items())


def train_net(net: nn.Module, images: Sequence[Tensor]) -> Tensor:
    """The losses."""
    dtype = next(net.parameters()).dtype
    losses = train(net, SGD(net.parameters(), lr=0.01, momentum=0.9), [x.to(dtype) for x in images])
    return torch.tensor(losses, dtype=dtype)


def multi_branch_nets() -> tuple[nn.Module, nn.Module, nn.Module, list[Tensor]]:
    """A net in float64, in float32, and merged, and images for STEPS steps."""
    net = models.multi_branch((3, 1, 4), channels=32, width=8)
    for branch in net.branches:
        nn.init.constant_(branch[1].gamma, 0.5)
    merged = copy.deepcopy(net)
    merged.branches = merge.branches(merged.branches)
    return copy.deepcopy(net).double(), net, merged, [torch.randn(4, 3, 64, 64) for _ in range(STEPS)]


def test_multi_branch_net_trains_as_its_loop(seed: int) -> None:
    """The whole net against the loop in float64: equal steps."""
    exact, _, merged, images = multi_branch_nets()
    truth, ours = train_net(exact, images), train_net(merged.double(), images)
    torch.testing.assert_close(ours, truth, rtol=TOLERANCE, atol=TOLERANCE)
    assert ours[-1] < ours[0]


def test_multi_branch_net_trains_in_float32_as_near_to_float64_as_its_loop(seed: int) -> None:
    def draw() -> tuple[Quantities, Quantities, Quantities]:
        *nets, images = multi_branch_nets()
        return tuple(named(train_net(net, images)) for net in nets)

    assert_as_near(draw)


def test_optimizer_of_the_whole_net_goes_on(seed: int) -> None:
    """The branches are a ModuleList inside of a net whose other parameters the optimizer has too."""
    net = models.multi_branch((3, 1), channels=16, width=4)
    optimizer = SGD(net.parameters(), lr=0.01, momentum=0.9)
    images = [torch.randn(2, 3, 32, 32) for _ in range(2)]
    train(net, optimizer, images)
    loop = net.branches
    net.branches = merge.branches(loop)
    merge.move_optimizer_state(optimizer, loop, net.branches)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in net.parameters()}
    train(net, optimizer, images)
    back = nn.ModuleList(net.branches.split_back())
    merge.move_optimizer_state(optimizer, net.branches, back)
    assert set(optimizer.state) >= set(back.parameters())


def test_multi_branch_net_is_ragged() -> None:
    net = models.multi_branch((3, 1, 4), channels=16, width=4).eval()
    x = torch.randn(2, 3, 64, 64)
    loop = net(x)
    assert loop.shape == (2, 8)
    net.branches = merge.branches(net.branches)
    torch.testing.assert_close(net(x), loop)
    assert [y.shape[1] for y in net.branches.separate(net(x))] == [3, 1, 4]


def test_multi_branch_bad_arguments() -> None:
    with pytest.raises(ValueError, match="at least one group, got none"):
        models.multi_branch(())
    with pytest.raises(ValueError, match="divisible by 8, got 20"):
        models.multi_branch(channels=20)
