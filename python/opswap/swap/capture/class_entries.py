# SPDX-License-Identifier: MIT
"""What the entries of a class are, and which class gives one of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partialmethod
from types import FunctionType
from typing import Any

from ..runtime import purity
from ..runtime.members import HEAP_TYPE, is_public, owner_of_class

__all__ = ["WRAPPERS", "functions_in", "givers", "has_own", "is_fixed", "is_of_user", "public_names"]

WRAPPERS = (property, staticmethod, classmethod, cached_property, partialmethod)


def functions_in(value: Any) -> Iterator[FunctionType]:
    """The functions in an entry of a class."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, WRAPPERS):
        for part in ("fget", "fset", "fdel", "__func__", "func"):
            yield from functions_in(getattr(value, part, None))


def givers(cls: type, name: str) -> list[type]:
    """The classes in which an attribute is looked up: by `super()`, also those that hide or may hide one of a base."""
    if sum(name in vars(b) for b in cls.__mro__) < 2:
        return [cls]
    users = [b for b in cls.__mro__ if owner_of_class(b) == purity.USER]
    having = [i for i, b in enumerate(users) if name in vars(b)]
    return [cls, *(b for b in users[: having[-1] + 1] if b is not cls)] if len(having) > 1 else [cls]


def public_names(cls: type) -> list[str]:
    """The entries of a class and its bases, of the user, that code may read by any name."""
    users = [b for b in cls.__mro__ if owner_of_class(b) == purity.USER]
    return [n for b in users for n, v in vars(b).items() if is_public(n, v)]


def is_of_user(cls: type, name: str) -> bool:
    """True if a class of the user, not one of torch, gives the attribute."""
    return any(name in vars(b) and owner_of_class(b) == purity.USER for b in cls.__mro__)


def has_own(cls: type, name: str) -> bool:
    """True if a class itself has the entry; from Python 3.14 on, annotations are created when they are read."""
    return name in vars(cls) or (name == "__annotations__" and "__annotate_func__" in vars(cls))


def is_fixed(cls: type) -> bool:
    """True for a class whose attributes cannot be changed."""
    return not cls.__flags__ & HEAP_TYPE
