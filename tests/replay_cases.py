# SPDX-License-Identifier: MIT
"""A block whose calls are recorded, and its stock twin."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import opswap
from opswap.nn.frozen import FROZEN, Replay

LAST = torch.channels_last
FACTOR = 2.0


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR


class Block(nn.Module):
    """ShuffleNetV2's block, and code that reads a global, a constant of the class and an option."""

    SHIFT = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.slope = 0.5
        self.branch = nn.Sequential(
            nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16),
            nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        )  # fmt: skip
        self.tail = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((x, self.branch(x)), 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        x = F.leaky_relu(scaled(x) + self.SHIFT, self.slope)
        return x / x.pow(2).mean() + self.tail(x[:, :, :1, :3]).mean()


def drawn(model: nn.Module) -> nn.Module:
    """With statistics that are not those of a new BatchNorm, in channels_last."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
    return model.to(memory_format=LAST)


def made(cls: Callable[[], nn.Module] = Block) -> nn.Module:
    torch.manual_seed(0)
    return drawn(cls()).eval()


def inputs(size: int = 16) -> Tensor:
    return torch.randn(2, 16, size, size).contiguous(memory_format=LAST)


def replaying(frozen: bool = True) -> tuple[nn.Module, nn.Module]:
    """(stock, swapped, perhaps frozen, with a plan)."""
    stock = made()
    model = opswap.swap(copy.deepcopy(stock))
    if frozen:
        opswap.freeze(model)
    with torch.no_grad():
        for _ in range(4):
            model(inputs())
    assert plans(model) == 1, kept(model).refused
    return stock, model


def kept(model: nn.Module) -> Replay:
    record: Any = vars(model).get("_opswap_record")
    found: Any = vars(model).get(FROZEN)
    if record is not None and (found is None or record.follows):
        found = record.replay
    assert isinstance(found, Replay)
    return found


def plans(model: nn.Module) -> int:
    return len(kept(model).plans)


@torch.no_grad()
def compare(stock: nn.Module, model: nn.Module, x: Tensor | None = None) -> None:
    x = inputs() if x is None else x
    torch.testing.assert_close(model(x), stock(x), rtol=1e-4, atol=1e-4)


def runs(model: nn.Module) -> bool:
    """True if a call runs nothing but the plan."""
    calls: list[Any] = []
    plan = next(iter(kept(model).plans.values()), None)
    if plan is None:
        return False
    run = plan.recording.run
    plan.recording.run = lambda *args: (calls.append(1), run(*args))[1]
    with torch.no_grad():
        model(inputs())
    plan.recording.run = run
    return bool(calls)


def runs_of(function: Any, call: Callable[[], Any]) -> int:
    """How often the code of a function runs in a call."""
    seen: list[int] = []
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code is function.__code__ and event == "call"))
    try:
        call()
    finally:
        sys.setprofile(None)
    return sum(seen)
