# SPDX-License-Identifier: MIT
"""An optimizer that goes on where Linears became one GroupedLinear, and the other way round."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from opswap import GroupedLinear
from opswap.merge import move_optimizer_state, move_parameters

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
