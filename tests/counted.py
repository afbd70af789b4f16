# SPDX-License-Identifier: MIT
"""How often kernels and original forwards ran since `opswap.reset_stats()`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

import opswap

__all__ = ["chains", "counts", "kernels", "kernels_of", "originals_of"]


def kernels(name: str = "") -> int:
    """Calls of one kernel, or of all."""
    found = opswap.stats()["kernel"]
    return found.get(name, 0) if name else sum(found.values())


def kernels_of(model: nn.Module, x: Tensor, name: str = "") -> int:
    """Calls of one kernel, or of all, in one call of the model."""
    opswap.reset_stats()
    model(x)
    return kernels(name)


def chains() -> tuple[int, int]:
    """Calls of conv_chain: forward, backward."""
    return kernels("conv_chain"), kernels("conv_chain_backward")


def originals_of(call: Callable[[], object]) -> int:
    """Calls of original forwards during `call`."""
    opswap.reset_stats()
    call()
    return sum(opswap.stats()["original"].values())


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Calls by name: of kernels, and of the form in plain torch code."""
    found = opswap.stats()
    return found["kernel"], found["reference"]
