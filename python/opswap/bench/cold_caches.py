# SPDX-License-Identifier: MIT
"""A function as it runs between the operators of a network, whose data fills the caches."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["ColdCaches"]

_LEAST, _MOST = 32 << 20, 256 << 20  # bytes of other data


class ColdCaches:
    """The function, for `time_in_turn`, which writes to as many bytes as the last cache holds before each call."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.plan = getattr(function, "plan", "")
        prepare = getattr(function, "prepare", None)
        if prepare is not None:
            self.prepare = prepare

    def __call__(self) -> Any:
        return self.function()

    def prepare_call(self) -> None:
        """Fill the caches."""
        _other_data().add_(1)


@cache
def _other_data() -> Tensor:
    try:
        size = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (OSError, ValueError):  # not glibc
        size = 0
    return torch.zeros(min(max(size, _LEAST), _MOST) // 4)
