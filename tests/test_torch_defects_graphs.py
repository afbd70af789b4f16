# SPDX-License-Identifier: MIT
"""Defects of torch in channels_last that swapped models do not meet in graphs, in transforms, or with one image."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from surviving import survive

pytestmark = pytest.mark.once
LAST = torch.channels_last


def _compiled(backend: str) -> Callable[[nn.Module, Tensor], Any]:
    def make(model: nn.Module, x: Tensor) -> Any:
        torch._dynamo.reset()
        return torch.compile(model, backend=backend)

    return make


# What trains in place of the model.
FORMS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "eager": lambda model, x: model,
    "compile": _compiled("eager"),
    "aot": _compiled("aot_eager"),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
    "grad": lambda model, x: model,
    "vjp": lambda model, x: model,
}


def _gradient(form: str, model: nn.Module, x: Tensor) -> Tensor:
    """Of the sum of cosines; they give the output a gradient in channels_last."""

    def loss(x: Tensor) -> Tensor:
        return model(x).cos().sum()

    if form == "grad":
        return torch.func.grad(loss)(x)
    if form == "vjp":
        value, pull = torch.func.vjp(loss, x)
        return pull(torch.ones_like(value))[0]
    x = x.clone().requires_grad_()
    model = FORMS[form](model, x)
    return torch.autograd.grad(loss(x), x)[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [(3, 20, 20), (1, 3, 20, 20), (2, 3, 9, 9)], ids=str)
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_instance_norm_of_one_image(exact: bool, running: bool, size: tuple[int, ...], form: str) -> None:
    torch.manual_seed(0)
    norm = nn.InstanceNorm2d(32, affine=True, track_running_stats=running)
    stock = nn.Sequential(nn.Conv2d(3, 32, 1, bias=False), norm, nn.Conv2d(32, 16, 1))
    x = torch.randn(size)
    expected = _gradient("eager", copy.deepcopy(stock).double(), x.double())
    model = opswap.swap(stock, memory_format=LAST, exact=exact)
    torch.testing.assert_close(_gradient(form, model, x).double(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("exact", [False, True])
def test_instance_norm_of_one_volume(exact: bool) -> None:
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Conv3d(3, 16, 1), nn.InstanceNorm3d(16, affine=True), nn.Conv3d(16, 8, 1))
    x = torch.randn(3, 6, 5, 4)
    expected = _gradient("eager", copy.deepcopy(stock).double(), x.double())
    model = opswap.swap(stock, memory_format=torch.channels_last_3d, exact=exact)
    torch.testing.assert_close(_gradient("eager", model, x).double(), expected, rtol=1e-3, atol=1e-4)


FROZEN = """
import copy, torch, opswap
from torch import nn
LAST = torch.channels_last
forms = {
    "eager": lambda model, x: torch.compile(model, backend="eager"),
    "aot": lambda model, x: torch.compile(model, backend="aot_eager"),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
}
for exact in (False, True):
    for form, make in forms.items():
        torch._dynamo.reset()
        torch.manual_seed(0)
        stock = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.Conv2d(8, 32, 1))
        stock[0].requires_grad_(False)
        x, reference = torch.randn(2, 3, 5, 6), copy.deepcopy(stock).double()
        model = opswap.swap(stock, memory_format=LAST, exact=exact)
        run = make(model, x)
        for _ in range(20):
            run.zero_grad()
            run(x).sin().sum().backward()
        reference(x.double()).sin().sum().backward()
        got = {k.removeprefix("_orig_mod."): p.grad for k, p in run.named_parameters()}
        for name, p in reference[1].named_parameters():
            torch.testing.assert_close(got["1." + name].double(), p.grad, rtol=1e-3, atol=1e-3)
print("ran")
"""


def test_group_norm_behind_frozen_layers_in_graphs() -> None:
    """A gradient that is missing there is written to nevertheless, and the process ends."""
    assert survive(FROZEN, timeout=600) == "ran\n"


def test_batched_gradients_of_group_norm_behind_frozen_layers() -> None:
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.Conv2d(8, 4, 1))
    stock[0].requires_grad_(False)
    x, many = torch.randn(2, 3, 5, 6), torch.randn(3, 2, 4, 5, 6)
    found = []
    for model in (copy.deepcopy(stock), opswap.swap(stock, memory_format=LAST)):
        made = torch.autograd.grad(model(x), [*model[1].parameters()], many, is_grads_batched=True)
        found.append(made)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


STRIDED = """
import torch, opswap
from torch import nn
model = opswap.swap(nn.Sequential(nn.Conv2d(3, 48, 1, stride=2)), memory_format=torch.channels_last, exact={exact})
stock = nn.Sequential(nn.Conv2d(3, 48, 1, stride=2))
stock.load_state_dict(model.state_dict())
for _ in range(100):
    x = torch.randn(3, 112, 112)
    for m in (model, stock):
        m.zero_grad()
        m(x).sin().sum().backward()
    torch.testing.assert_close(model[0].weight.grad, stock[0].weight.grad, rtol=1e-3, atol=1e-2)
print("ran")
"""


@pytest.mark.parametrize("exact", [False, True])
def test_one_image_through_a_strided_convolution(exact: bool) -> None:
    assert survive(STRIDED.replace("{exact}", str(exact))) == "ran\n"
