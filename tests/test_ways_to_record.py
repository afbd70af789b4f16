# SPDX-License-Identifier: MIT
"""A forward is recorded in several ways, by the kind of its tensors: a checkpoint may run it again in another one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import opswap
import opswap.functional as F
from opswap.ops.chain import Stage
from surviving import python


class Subclass(Tensor):
    pass


WEIGHT, BIAS, PIXELS = torch.rand(16), torch.rand(16), torch.randn(16, 16, 1, 1)


def parameters() -> tuple[Tensor, Tensor, Tensor]:
    weight, bias, pixels = (t.clone().requires_grad_() for t in (WEIGHT, BIAS, PIXELS))
    return weight, bias, pixels


CALLS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "batch_norm": lambda x, w, b, _: F.batch_norm(x, None, None, w, b, True),
    "batch_norm of a bias": lambda x, w, b, _: F.batch_norm(x, None, None, None, b, True),
    "batch_norm_act": lambda x, w, b, _: F.batch_norm_act(x, None, None, w, b, True, activation="relu"),
    "group_norm": lambda x, w, b, _: F.group_norm(x, 4, w, b),
    "layer_norm2d": lambda x, w, b, _: F.layer_norm2d(x, w, b),
    "pointwise_conv2d": lambda x, w, b, p: F.pointwise_conv2d(x, p, b),
    "conv2d_batch_norm_act": lambda x, w, b, p: F.conv2d_batch_norm_act(x, p, w, b),
    "max_pool2d": lambda x, w, b, p: F.max_pool2d(x * w.view(-1, 1, 1), 2),
    "channel_shuffle": lambda x, w, b, p: F.channel_shuffle(x * w.view(-1, 1, 1), 4),
    "batch_norm_act of a bias": lambda x, w, b, _: F.batch_norm_act(
        x, None, None, None, b, True, activation="relu"
    ),
    "conv_chain": lambda x, w, b, p: F.conv_chain(x, [Stage(p, w, b), Stage(p, w, b, activation="relu")]),
    "conv_chain that moves": lambda x, w, b, p: F.conv_chain(x, [Stage(p, w, b, *torch.ones(2, 16))] * 2),
    "dropout": lambda x, w, b, p: F.dropout(x * w.view(-1, 1, 1), 0.3),
}


class Asked(Tensor):
    """Calls what the function would have called without it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("kind", [Subclass, Asked])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CALLS)
def test_checkpoint_of_a_subclass(name: str, memory_format: torch.memory_format, kind: type[Tensor]) -> None:
    """torch disables `__torch_function__` while the backward of a subclass runs, and so in the second forward.

    What the first forward computes before the call is of the subclass, and in the second forward an ordinary tensor.
    """
    x = torch.randn(4, 16, 8, 8).contiguous(memory_format=memory_format)
    gradients = []
    for run in (lambda f, *a: f(*a), lambda f, *a: checkpoint(f, *a, use_reentrant=False)):
        tensors = parameters()
        torch.manual_seed(0)
        run(
            lambda t, *rest: CALLS[name](t * 1.5, *rest), x.as_subclass(kind), *tensors
        ).square().sum().backward()
        gradients.append([t.grad for t in tensors])
    for a, b in zip(*gradients, strict=True):
        assert a is None if b is None else torch.allclose(a, b, atol=1e-4)


def test_checkpoint_of_a_model() -> None:
    stock = nn.Sequential(
        nn.Conv2d(16, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 16, 1),
        nn.BatchNorm2d(16),
    )
    model = opswap.swap(copy.deepcopy(stock))
    x = torch.randn(4, 16, 8, 8).as_subclass(Subclass)
    for m in (stock, model):
        checkpoint(m, x, use_reentrant=False).pow(3).sum().backward()
    for a, b in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=2e-2, rtol=1e-3)


@pytest.mark.parametrize("kind", [Tensor, Subclass])
def test_a_bias_may_change_before_the_backward(kind: type[Tensor]) -> None:
    """As with torch's batch_norm, which keeps its weight alone."""
    weight, bias, _ = parameters()
    out = F.batch_norm(torch.randn(2, 16, 4, 4).as_subclass(kind), None, None, weight, bias, True)
    with torch.no_grad():
        bias.add_(1)
    out.sum().backward()
    assert torch.equal(bias.grad, torch.full((16,), 32.0))


@pytest.mark.parametrize("kind", [Tensor, Subclass])
@pytest.mark.parametrize("name", ["group_norm", "layer_norm2d"])
def test_a_bias_of_other_norms_may_change_before_the_backward(name: str, kind: type[Tensor]) -> None:
    weight, bias, _ = parameters()
    x = torch.randn(2, 16, 24, 24).contiguous(memory_format=torch.channels_last).as_subclass(kind)
    out = F.group_norm(x, 4, weight, bias) if name == "group_norm" else F.layer_norm2d(x, weight, bias)
    with torch.no_grad():
        bias.add_(1)
    out.sum().backward()
    assert torch.equal(bias.grad, torch.full((16,), 1152.0))


# Not those for which torch's function runs under vmap: its convolutions lose the size of the example.
EMPTY: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool2d": lambda t: F.max_pool2d(t, 2),
    "max_pool3d": lambda t: F.max_pool3d(t[:, :, None], (1, 2, 2)),
    "avg_pool2d": lambda t: F.avg_pool2d(t, 2),
    "adaptive_max_pool2d": lambda t: F.adaptive_max_pool2d(t, 3),
    "global_max_pool2d": F.global_max_pool2d,
    "batch_norm": lambda t: F.batch_norm(t, None, None, training=True),
    "layer_norm": lambda t: F.layer_norm(t, (8,)),
    "layer_norm2d": F.layer_norm2d,
    "channel_permutation": lambda t: F.channel_permutation(t, (3, 0, 2, 1)),
    "grouped_linear": lambda t: F.grouped_linear(t, torch.ones(8, 4, 8)),
}


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", EMPTY)
def test_vmap_over_nothing(name: str, dim: int) -> None:
    call, x = EMPTY[name], torch.randn(2, 4, 8, 8)
    none = x.unsqueeze(dim).narrow(dim, 0, 0)
    assert torch.func.vmap(call, in_dims=dim)(none).shape == (0, *call(x).shape)
    gradient = torch.func.vmap(torch.func.grad(lambda t: call(t).sum()), in_dims=dim)(none)
    assert gradient.shape == (0, *x.shape)


FROZEN = """
import torch, opswap
from torch import nn
for dtype in (torch.float32, torch.float64, torch.bfloat16):
    for side in (4, 32):
        model = opswap.swap(nn.Sequential(nn.Conv2d(16, 16, 1).requires_grad_(False), nn.GroupNorm(4, 16)).to(dtype))
        model.to(memory_format=torch.channels_last)
        x = torch.randn(2, 16, side, side, dtype=dtype).contiguous(memory_format=torch.channels_last)
        out = model(x)
        out.sum().backward()
        assert torch.equal(model[1].bias.grad, torch.full((16,), 2.0 * side * side, dtype=dtype))
print("ran")
"""


def test_group_norm_behind_frozen_layers() -> None:
    """torch 2.13 ends the process there: its backward writes a gradient of the input that nobody asked for."""
    assert python(FROZEN) == "ran\n"
