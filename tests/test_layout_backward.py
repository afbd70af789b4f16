# SPDX-License-Identifier: MIT
"""The layout checker in threads of the autograd engine, where no Python code is running.

CUDA runs a backward in a thread per device. On the CPU one is started for a backward within 60 others.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from layout_models import line_of
from opswap.layout import check

DEPTH = 70
THREADS: set[int] = set()


class Nested(Function):
    """The module's output; its backward makes graphs of the module, each within the backward of the one before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module, depth: int) -> Tensor:
        ctx.module, ctx.depth = module, depth
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        THREADS.add(threading.get_ident())
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.module(x)
            if ctx.depth:
                y = Nested.apply(y, ctx.module, ctx.depth - 1)
        y.backward(gradient)
        return x.grad, None, None


class Lossy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return self.conv(x).view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)  # here


def test_operators_without_a_frame() -> None:
    THREADS.clear()
    model = Lossy().to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    with check(model) as report:
        Nested.apply(x, model, DEPTH).sum().backward()
    assert len(THREADS) > 1, "the engine did not start a thread"
    found = {f.line for f in report.findings if f.phase == "backward"}
    assert line_of(Lossy) in found
    assert x.grad is not None and bool(x.grad.isfinite().all())
