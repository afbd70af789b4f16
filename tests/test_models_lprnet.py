# SPDX-License-Identifier: MIT
"""LPRNet: the keys and shapes of the published checkpoints, its numbers, its training with our pools."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import opswap
from inputs import same_bits
from opswap.models import lprnet
from opswap.nn import Pool3dAsPool2d

# Layers with weights of the published network: convolutions by output and input channels and kernel, and norms.
CONVOLUTIONS = {
    "backbone.0": (64, 3, 3, 3),
    "backbone.4.block.0": (32, 64, 1, 1),
    "backbone.4.block.2": (32, 32, 3, 1),
    "backbone.4.block.4": (32, 32, 1, 3),
    "backbone.4.block.6": (128, 32, 1, 1),
    "backbone.8.block.0": (64, 64, 1, 1),
    "backbone.8.block.2": (64, 64, 3, 1),
    "backbone.8.block.4": (64, 64, 1, 3),
    "backbone.8.block.6": (256, 64, 1, 1),
    "backbone.11.block.0": (64, 256, 1, 1),
    "backbone.11.block.2": (64, 64, 3, 1),
    "backbone.11.block.4": (64, 64, 1, 3),
    "backbone.11.block.6": (256, 64, 1, 1),
    "backbone.16": (256, 64, 1, 4),
    "backbone.20": (68, 256, 13, 1),
    "container.0": (68, 516, 1, 1),
}
NORMS = {
    "backbone.1": 64,
    "backbone.5": 128,
    "backbone.9": 256,
    "backbone.12": 256,
    "backbone.17": 256,
    "backbone.21": 68,
}


def published_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, weight in CONVOLUTIONS.items():
        shapes |= {f"{name}.weight": weight, f"{name}.bias": weight[:1]}
    for name, channels in NORMS.items():
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{part}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()
    return shapes


def with_our_pools(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for name, module in list(model.backbone.named_children()):
        if type(module) is nn.MaxPool3d:
            setattr(model.backbone, name, Pool3dAsPool2d.from_module(module))
    return model


def direct(model: nn.Module, x: Tensor) -> Tensor:
    """The published forward, layer by layer."""
    layers = list(model.backbone)
    kept = []
    for first, last in ((0, 3), (3, 7), (7, 14), (14, 23)):
        x = nn.Sequential(*layers[first:last])(x)
        kept.append(x)
    pools = (nn.AvgPool2d(5, 5), nn.AvgPool2d(5, 5), nn.AvgPool2d((4, 10), (4, 2)), nn.Identity())
    context = [pool(x) for pool, x in zip(pools, kept, strict=True)]
    return torch.mean(model.container(torch.cat([f / torch.mean(f**2) for f in context], 1)), dim=2)


def test_published_checkpoints_load() -> None:
    state = lprnet().state_dict()
    assert {k: tuple(v.shape) for k, v in state.items()} == published_shapes()
    order = [k for k in state if k.endswith(".weight")]
    assert order[:3] == ["backbone.0.weight", "backbone.1.weight", "backbone.4.block.0.weight"]
    checkpoint = {k: torch.rand_like(v, dtype=torch.float32) for k, v in state.items()}
    assert not any(lprnet().load_state_dict(checkpoint, strict=True))


def test_layers_without_weights_stand_where_the_published_ones_do() -> None:
    kinds = {i: type(m).__name__ for i, m in enumerate(lprnet().backbone)}
    assert [i for i, kind in kinds.items() if kind == "MaxPool3d"] == [3, 7, 14]
    assert [i for i, kind in kinds.items() if kind == "Dropout"] == [15, 19]
    assert [i for i, kind in kinds.items() if kind == "ReLU"] == [2, 6, 10, 13, 18, 22]
    assert [lprnet().backbone[i].stride for i in (3, 7, 14)] == [(1, 1, 1), (2, 1, 2), (4, 1, 2)]


def test_forward() -> None:
    model = lprnet(num_classes=11, dropout=0.0).eval()
    x = torch.randn(3, 3, 24, 94)
    with torch.no_grad():
        logits = model(x)
        assert logits.shape == (3, 11, 18)
        assert torch.allclose(logits, direct(model, x), atol=1e-6)


def ctc_losses(model: nn.Module, x: Tensor, target: Tensor) -> list[Tensor]:
    """The losses of three steps."""
    lengths = torch.full((len(x),), 18), torch.full((len(x),), 5)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for _ in range(3):
        loss = nn.functional.ctc_loss(model(x).log_softmax(1).permute(2, 0, 1), target, *lengths)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


class _Format(torch.autograd.Function):
    """Another memory format forward and, for the gradient, backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: torch.memory_format, backward: torch.memory_format) -> Tensor:
        ctx.backward_format = backward
        return x.clone(memory_format=forward)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.clone(memory_format=ctx.backward_format), None, None


class _InAnyFormat(nn.Module):
    """A stock pool, which knows a single memory format, in a network in channels_last."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        formats = torch.contiguous_format, torch.channels_last
        return _Format.apply(self.pool(_Format.apply(x, *formats)), *reversed(formats))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_trains_as_stock_with_our_pools(memory_format: torch.memory_format) -> None:
    """CTC training on both: the same losses, bit for bit."""
    stock = lprnet(num_classes=11, dropout=0.0)
    ours = with_our_pools(stock).to(memory_format=memory_format)
    if memory_format is torch.channels_last:
        for name, module in list(stock.backbone.named_children()):
            if type(module) is nn.MaxPool3d:
                setattr(stock.backbone, name, _InAnyFormat(module))
        stock.to(memory_format=memory_format)
    x, target = torch.randn(4, 3, 24, 94).to(memory_format=memory_format), torch.randint(1, 11, (4, 5))
    opswap.reset_stats()
    assert same_bits(*(torch.stack(ctc_losses(m, x, target)) for m in (ours, stock)))
    assert opswap.stats()["kernel"]["max_pool_backward"] == 9


def test_channels_last_reaches_the_last_layer() -> None:
    model = with_our_pools(lprnet(num_classes=11)).to(memory_format=torch.channels_last)
    formats: dict[str, bool] = {}
    for name, module in model.backbone.named_children():

        def note(_: nn.Module, __: object, output: Tensor, name: str = name) -> None:
            formats[name] = output.is_contiguous(memory_format=torch.channels_last)

        module.register_forward_hook(note)
    model(torch.randn(2, 3, 24, 94).contiguous(memory_format=torch.channels_last))
    assert all(formats.values()), formats
