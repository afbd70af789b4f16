# SPDX-License-Identifier: MIT
"""What results depend on although an attribute of a class does not show it, and which may come later.

isinstance(x, SomeABC) depends on registrations by SomeABC.register, attributes that a layer lacks on a `__getattr__`
of its class.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
from functools import lru_cache

import torch
from torch import nn

__all__ = ["LookUp", "Virtual", "look_up", "virtual"]


class Virtual:
    """The classes that are registered with an abstract class or with those derived from it.

    cls: the abstract class. Attribute registered: their names, one text; the same object while it is the same text.
    """

    def __init__(self, cls: abc.ABCMeta) -> None:
        self.cls = cls
        self.__qualname__ = cls.__qualname__
        self._token: object = None
        self._names = ""

    @property
    def registered(self) -> str:
        # torch.compile guards on classes, and cannot trace this.
        if not torch.compiler.is_compiling():
            token = abc.get_cache_token()
            if token != self._token:
                names = _registered(self.cls)
                self._names = self._names if names == self._names else names
                self._token = token
        return self._names


@lru_cache(maxsize=256)
def virtual(cls: abc.ABCMeta) -> Virtual:
    """The one object for an abstract class."""
    return Virtual(cls)


class LookUp:
    """The `__getattr__` that a class of layers has in place of torch's, which exporters replace for a while.

    cls: the class. Attribute function: None as long as it is torch's.
    """

    def __init__(self, cls: type[nn.Module]) -> None:
        self.cls = cls
        self.__qualname__ = cls.__qualname__

    @property
    def function(self) -> object:
        # torch.compile guards on classes.
        if self.cls.__getattr__ is nn.Module.__getattr__ or torch.compiler.is_compiling():
            return None
        return self.cls.__getattr__


@lru_cache(maxsize=256)
def look_up(cls: type[nn.Module]) -> LookUp:
    """The one object for a class of layers."""
    return LookUp(cls)


def _registered(cls: type) -> str:
    """The names of all classes that are registered with this class or one below it."""
    names, seen, waiting = set(), set(), [cls]
    while waiting:
        base = waiting.pop()
        if base in seen:
            continue
        seen.add(base)
        if isinstance(base, abc.ABCMeta):
            held = (reference() for reference in _abc._get_dump(base)[0])
            found = [c for c in held if c is not None]
            names.update(f"{c.__module__}.{c.__qualname__}" for c in found)
            waiting += [*found, *base.__subclasses__()]
    return ", ".join(sorted(names))
