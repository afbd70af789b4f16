# SPDX-License-Identifier: MIT
"""Branches merged into one module against the loop over them, and the multi-branch net as a whole.

A merged module runs torch's own operators; if a loop is the fastest way to run them it is one, which the row shows:
its ratio is that of the same operators to themselves, about 1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import opswap
from opswap.bench.case import LAYOUTS, Case
from opswap.models.multi_branch import Bottleneck, GlobalMaxPool, MultiBranch, SelfAttention

__all__ = ["cases"]

_BRANCHES = 12
# Grouped convolutions sum in another order than a loop of plain ones.
_TOLERANCE = 1e-3
_TUNING_SECONDS = 1.5


def _conv_bn_relu(channels: int, out_channels: int) -> nn.Module:
    conv = nn.Conv2d(channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.ReLU())


def _head(channels: int) -> nn.Module:
    return nn.Sequential(GlobalMaxPool(), nn.Linear(channels, 10))


# A branch, and the channels and the side of its input.
_BRANCH: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "conv-bn-relu 16": (partial(_conv_bn_relu, 16, 16), 16, 14),
    "conv-bn-relu 64": (partial(_conv_bn_relu, 64, 64), 64, 14),
    "Bottleneck 128/32": (partial(Bottleneck, 128, 32), 128, 7),
    "Bottleneck 256/64": (partial(Bottleneck, 256, 64), 256, 7),
    "attention 128": (partial(SelfAttention, 128, 16), 128, 7),
    "pool and head 128": (partial(_head, 128), 128, 7),
}


def cases(batch: int) -> Iterator[Case]:
    """Every branch with one shared input, at batch 1 and `batch`, in both layouts; then the whole net."""
    for size in dict.fromkeys((1, batch)):
        for name, (make, channels, side) in _BRANCH.items():
            for layout in LAYOUTS:
                shape = f"{size},{channels},{side},{side}"
                yield from _directions(f"12 x {name}", shape, layout, partial(_loop, make))
        for layout in LAYOUTS:
            yield from _directions("multi_branch", f"{size},3,112,112", layout, MultiBranch)


def _directions(name: str, shape: str, layout: str, make: Callable[[], nn.Module]) -> Iterator[Case]:
    for direction in ("step", "inference"):
        build = partial(_build, make, tuple(map(int, shape.split(","))), layout, direction)
        yield Case(
            name, shape, "float32", direction, build, {"merged": layout}, tolerance=_TOLERANCE, kernels=False
        )


class _Loop(nn.Module):
    """A list of outputs, from a loop as from a merged module."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches: nn.Module = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> list[Tensor]:
        if isinstance(self.branches, nn.ModuleList):
            return [branch(x) for branch in self.branches]
        return self.branches(x)


def _loop(make: Callable[[], nn.Module]) -> nn.Module:
    return _Loop([make() for _ in range(_BRANCHES)])


def _build(
    make: Callable[[], nn.Module], shape: tuple[int, ...], layout: str, direction: str
) -> dict[str, Callable[[], Any]]:
    memory_format = LAYOUTS[layout]
    loop = make().to(memory_format=memory_format).train(direction == "step")
    x = torch.randn(shape).contiguous(memory_format=memory_format)
    merged = copy.deepcopy(loop)
    features = x
    if isinstance(loop, MultiBranch):
        with torch.no_grad():
            features = copy.deepcopy(loop).eval().backbone(x)
    merged.branches = opswap.merge.branches(loop.branches, stacked=isinstance(loop, MultiBranch))
    merged.branches.measure(features, seconds=_TUNING_SECONDS)
    run = _step if direction == "step" else _inference
    ours = run(merged, x)
    mode = "training" if direction == "step" else "inference"
    timings = merged.branches.merge_report().timings
    ours.plan = next(t.chosen for t in timings if not t.path and t.mode == mode)
    return {"loop": run(loop, x), "merged": ours}


def _step(model: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """Forward, a sum of squares, and backward."""

    def run() -> Tensor:
        model.zero_grad()
        y = model(x)
        loss = y.square().sum() if isinstance(y, Tensor) else sum(part.square().sum() for part in y)
        loss.backward()
        return loss.detach()

    return run


def _inference(model: nn.Module, x: Tensor) -> Callable[[], Tensor | Sequence[Tensor]]:
    return torch.inference_mode()(lambda: model(x))
