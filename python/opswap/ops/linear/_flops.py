# SPDX-License-Identifier: MIT
"""What torch.utils.flop_counter counts for grouped linear maps: as much as for the products that they replace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ._run import NAME

__all__ = ["register_flops"]

_registered = False


def _forward(input: Sequence[int], weight: Sequence[int], *others: Any, **kwargs: Any) -> int:
    return 2 * input[0] * math.prod(weight)


def _backward(
    grad_output: Sequence[int],
    input: Sequence[int],
    weight: Sequence[int],
    sections: Any,
    mask: Sequence[bool],
    **_: Any,
) -> int:
    """One product for the gradient of the input, one for that of the weight."""
    return sum(map(bool, mask[:2])) * _forward(input, weight)


def register_flops() -> None:
    """Register the operators with torch's FLOP counter; called when a module begins to use them, not at import."""
    global _registered
    if _registered:
        return
    from torch.utils.flop_counter import flop_registry, register_flop_formula

    for name, formula in ((NAME, _forward), (f"{NAME}_backward", _backward)):
        packet = getattr(torch.ops.opswap, name)
        if packet not in flop_registry:
            register_flop_formula(packet)(formula)
    _registered = True
