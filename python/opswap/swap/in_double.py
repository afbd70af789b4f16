# SPDX-License-Identifier: MIT
"""Run code in float64 that names another dtype, as `torch.arange(n, dtype=torch.float32)` and `x.float()` do.

A model in float64 may not run otherwise: a convolution refuses an input in float32 beside weights in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opswap._dispatch_mode import DispatchMode
from opswap._torch import tree_map

__all__ = ["InDouble"]

_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


class InDouble(DispatchMode):
    """While it is active, operators read and return float64 where they would a narrower dtype.

    Operators that write to their arguments keep the dtypes of these. Random numbers are drawn as they would be without
    the mode, as torch draws others in another dtype.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            args, kwargs = tree_map(_wider, (args, kwargs))
        return tree_map(_wider, func(*args, **kwargs))


def _wider(value: Any) -> Any:
    """A tensor in the wider dtype, a wider dtype, or any other value as it is."""
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    if isinstance(value, Tensor) and value.dtype in _WIDER:
        return value.to(_WIDER[value.dtype])
    return value
