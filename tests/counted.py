# SPDX-License-Identifier: MIT
"""How often kernels ran since `opswap.reset_stats()`."""

from __future__ import annotations

from torch import Tensor, nn

import opswap

__all__ = ["counts", "kernels", "kernels_of"]


def kernels(name: str = "") -> int:
    """Calls of one kernel, or of all."""
    found = opswap.stats()["kernel"]
    return found.get(name, 0) if name else sum(found.values())


def kernels_of(model: nn.Module, x: Tensor) -> int:
    """Calls of kernels in one call of the model."""
    opswap.reset_stats()
    model(x)
    return kernels()


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Calls by name: of kernels, and of the form in plain torch code."""
    found = opswap.stats()
    return found["kernel"], found["reference"]
