# SPDX-License-Identifier: MIT
"""Modules of torch that run between a normalisation and its activation, which a swapped forward computes as one.

What comes later there, a hook or another module, may change the activation: then the forward runs its own code.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from swapping import images, same_on_every_call


class Gated(nn.Module):
    """A module runs between a BatchNorm and its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.BatchNorm2d(12), nn.LeakyReLU(0.5)
        self.gate = nn.Sequential(nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        g = self.gate(x)
        return self.act(y) + g


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_an_activation_that_changes_after_its_normalisation(training: bool, before: bool) -> None:
    stock = Gated().train(training)
    model = copy.deepcopy(stock)
    if not before:
        opswap.swap(model)
    for m in (stock, model):
        m.gate.register_forward_hook(lambda *_, act=m.act: setattr(act, "negative_slope", 0.0))
    if before:
        opswap.swap(model)
    same_on_every_call(stock, model, lambda: [setattr(m.act, "negative_slope", 0.5) for m in (stock, model)])


class Flattens(nn.Module):
    """Changes the activation of the model that it is part of."""

    def __init__(self, act: nn.LeakyReLU, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.acts = [act]
        self.inner = nn.Identity() if inner is None else inner

    def forward(self, x: Tensor) -> Tensor:
        self.acts[0].negative_slope = 0.0
        return self.inner(x)


def flattens(act: nn.LeakyReLU) -> Callable[..., None]:
    return lambda *_: setattr(act, "negative_slope", 0.0)


LATER: dict[str, tuple[Callable[[Gated], Any], str]] = {
    "hook": (lambda m: m.gate.register_forward_pre_hook(flattens(m.act)), "hooks on gate"),
    "hook inside": (lambda m: m.gate[1].register_forward_hook(flattens(m.act)), r"hooks on gate\.1"),
    "child": (lambda m: m.gate.__setitem__(0, Flattens(m.act, m.gate[0])), r"gate\.0"),
    "more": (lambda m: m.gate.append(Flattens(m.act)), r"gate\.2"),
    "module": (lambda m: setattr(m, "gate", Flattens(m.act, m.gate)), "gate"),
    "forward": (
        lambda m: setattr(m.gate[0], "forward", Flattens(m.act, copy.copy(m.gate[0])).forward),
        r"gate\.0\.forward was replaced",
    ),
    "parametrization": (
        lambda m: nn.utils.parametrize.register_parametrization(m.gate[0], "weight", Flattens(m.act)),
        r"gate\.0",
    ),
}


@pytest.mark.parametrize("later, why", LATER.values(), ids=LATER.keys())
def test_what_comes_later_between_a_normalisation_and_its_activation(
    later: Callable[[Gated], Any], why: str
) -> None:
    stock = Gated()
    model = opswap.swap(copy.deepcopy(stock))
    assert any(s.rule == "batch_norm_act" for s in opswap.report(model).swapped)
    assert opswap.explain(model, images()).outcomes[0].ran == 1
    for m in (stock, model):
        later(m)
    same_on_every_call(stock, model, lambda: [setattr(m.act, "negative_slope", 0.5) for m in (stock, model)])
    assert re.search(why, str(opswap.explain(model, images())))


def test_a_users_module_between_a_normalisation_and_its_activation() -> None:
    model = Gated()
    model.gate[1] = Flattens(model.act)
    reasons = [s.reason for s in opswap.report(opswap.swap(model)).kept if s.rule == "batch_norm_act"]
    assert reasons == ["gate runs in between: its code may change the activation"]


def test_a_hook_of_all_modules_between_a_normalisation_and_its_activation() -> None:
    stock = Gated()
    model = opswap.swap(copy.deepcopy(stock))

    def hook(module: nn.Module, *_: Any) -> None:
        if isinstance(module, nn.Conv2d):
            stock.act.negative_slope = model.act.negative_slope = 0.0

    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        for m in (stock, model):
            m.act.negative_slope = 0.5
            m(images())
        x = images()
        expected = stock(x)
        model.act.negative_slope = 0.5
        torch.testing.assert_close(model(x), expected)
    finally:
        handle.remove()


def test_a_copy_and_a_compiled_graph_with_a_module_in_between() -> None:
    stock = Gated()
    model = copy.deepcopy(opswap.swap(copy.deepcopy(stock)))
    x = images()
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), stock(x))
    model.gate[0].register_forward_hook(flattens(model.act))
    stock.gate[0].register_forward_hook(flattens(stock.act))
    same_on_every_call(stock, model, lambda: [setattr(m.act, "negative_slope", 0.5) for m in (stock, model)])
