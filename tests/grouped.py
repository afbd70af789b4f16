# SPDX-License-Identifier: MIT
"""A module with a linear map a group in several forms, whose forward is the test's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["IN", "OUT", "Body", "G", "Groups", "N"]

G, IN, OUT, N = 4, 6, 3, 20

Body = Callable[[nn.Module, Tensor], Tensor]


class Groups(nn.Module):
    """Parameters of all groups in either order, and a Linear a group; the body is a method's."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.w = nn.Parameter(torch.randn(G, IN, OUT))
        self.t = nn.Parameter(torch.randn(G, OUT, IN))
        self.b = nn.Parameter(torch.randn(G, OUT))
        self.fcs = nn.ModuleList(nn.Linear(IN, OUT) for _ in range(G))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)
