# SPDX-License-Identifier: MIT
"""Dispatch modes that several test files use."""

from __future__ import annotations

from typing import Any

from opswap._torch import DispatchMode

__all__ = ["Names"]


class Names(DispatchMode):
    """Keeps the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
