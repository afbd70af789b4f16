# SPDX-License-Identifier: MIT
"""What a trace of torch.fx replaces while it runs, which other threads see too."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from opswap._torch import SYMBOLIC_TRACE

__all__ = ["unpatched"]

_CAPTURE = f"{__package__.rpartition('.')[0]}.capture"
_PATCHING = (SYMBOLIC_TRACE, f"{_CAPTURE}.replaced", f"{_CAPTURE}.patches")


def unpatched(value: Any) -> Any:
    """The function that torch.fx, or a capture, has replaced during a trace; any other value as it is."""
    while isinstance(value, FunctionType) and value.__globals__.get("__name__", "") in _PATCHING:
        inner = getattr(value, "__wrapped__", value)
        if inner is value:
            break
        value = inner
    return value
