# SPDX-License-Identifier: MIT
"""Fixed permutations of the channels by an index, in a list or in a buffer, shuffles and others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .base import PERMUTATION, Wrapped, whole, wrapped

ORDER = [7, 0, 11, 3, 5, 1, 10, 2, 9, 4, 8, 6]


def by_list(x: Tensor) -> Tensor:
    return x[:, ORDER]


class Indexed(Wrapped):
    """Permutes the channels by a buffer."""

    def __init__(self, pick: Callable[[Tensor, Tensor], Tensor], order: Tensor) -> None:
        super().__init__(nn.Identity())
        self.pick = pick
        self.register_buffer("order", order)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.pick(self.before(x), self.order))


def select(x: Tensor, order: Tensor) -> Tensor:
    return x.index_select(1, order)


def select_by_names(x: Tensor, order: Tensor) -> Tensor:
    return torch.index_select(x, dim=1, index=order)


def index(x: Tensor, order: Tensor) -> Tensor:
    return x[:, order]


def shuffle_order(groups: int) -> Tensor:
    return torch.arange(12).view(groups, -1).t().reshape(-1)


PERMUTATIONS = (
    wrapped(by_list, PERMUTATION),
    *(
        whole(
            lambda pick=pick: Indexed(pick, torch.tensor(ORDER)), (PERMUTATION,), f"buffer, {pick.__name__}"
        )
        for pick in (select, select_by_names, index)
    ),
    whole(lambda: Indexed(select, shuffle_order(3)), (PERMUTATION,), "shuffle in a buffer"),
)
