# SPDX-License-Identifier: MIT
"""What the variables of a running function hold, found without running code of the user."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch import nn

from ..runtime.outside import read
from .identity import Chain

__all__ = ["fetch", "has_cells"]


def fetch(variables: dict[str, Any], chain: Chain) -> Any:
    """The value of an expression of attributes and keys, if no code of the user runs for it; else None."""
    name, *steps = chain
    value = variables.get(name)
    for step in (s for s in steps if s != "*"):
        held = value.__dict__ if isinstance(value, nn.Module) else {}
        if isinstance(step, str) and step.startswith("."):
            own = held.get(step[1:])
            value = held.get("_modules", {}).get(step[1:]) if own is None else own
        elif isinstance(value, (nn.ModuleList, nn.Sequential)) and isinstance(step, int):
            value = tuple(value._modules.values())
        elif isinstance(value, nn.ModuleDict):
            value = value._modules
        if isinstance(step, int) or not step.startswith("."):
            try:
                value = value[step] if type(value) in (dict, list, tuple) else None
            except LookupError:
                return None
    return value


def has_cells(function: FunctionType, variables: dict[str, Any]) -> bool:
    """True if the function's closure has the values that a running frame has."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        value = read(cell, "cell_contents")
        if name in variables and variables[name] is not value:
            return False
    return True
