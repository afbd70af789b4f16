# SPDX-License-Identifier: MIT
"""Classes and objects of which no capture needs to watch anything."""

from __future__ import annotations

import enum
import sys
from collections import namedtuple
from typing import Any

from ..runtime import purity
from ..runtime.members import owner_of_class

__all__ = ["is_constant", "is_pure_class"]

# Its class is in another module with each version of Python.
_FIELD = type(namedtuple("_Example", "a").a)


def is_pure_class(cls: type) -> bool:
    if owner_of_class(cls) == purity.STATEFUL:
        return issubclass(cls, (BaseException, enum.Enum))
    return any(f for f in map(_is_python, cls.__mro__) if f) or purity.is_pure_class(cls)


def _is_python(cls: type) -> bool:
    """True for a class that a class statement of torch or a pure library made."""
    module = sys.modules.get(cls.__module__)
    return cls is not object and str(getattr(module, "__file__", "")).endswith(".py")


def is_constant(value: Any) -> bool:
    """True for an object made in C that never changes, as a compiled pattern."""
    cls = type(value)
    if cls is _FIELD or cls.__module__ in ("_collections", "operator", "re", "types", "typing"):
        return True
    return cls.__module__ == "numpy" and cls.__name__ == "ufunc"
