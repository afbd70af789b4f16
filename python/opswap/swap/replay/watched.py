# SPDX-License-Identifier: MIT
"""Attributes of classes, modules of Python, functions and cells, each with what it was."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter, is_
from types import ModuleType
from typing import Any

from torch import nn

from opswap import _core

from ..runtime.members import MISSING
from ..runtime.outside import all_unchanged
from ..runtime.snapshot import Plain, is_as
from ..runtime.virtual import LookUp

__all__ = ["Watched"]

_IMMUTABLE = 1 << 8  # the flag of a class in C, to which nothing can be added
_mro = attrgetter("__mro__")
Entry = tuple[dict[str, Any], str, tuple[Any, ...]]


class Watched:
    """Whether attributes are what they were.

    Those of classes and modules are looked up in their dictionaries: the one that holds the value, and those before it
    in the order of inheritance, which hold none. That takes a quarter of the time of asking each class.

    Args: shadows: holders with names that they shall not hold.
    """

    def __init__(
        self, watches: Sequence[tuple[Any, str, Any]], shadows: Sequence[tuple[Any, tuple[str, ...]]] = ()
    ) -> None:
        self._all = tuple(watches)
        self._absent: list[Entry] = [(vars(holder), name, ()) for holder, names in shadows for name in names]
        entries = {(id(entry[0]), entry[1]): entry for entry in self._absent}
        classes: dict[type, tuple[type, ...]] = {}
        modules: dict[int, ModuleType] = {}
        same, self._alike = [], []
        for watch in self._all:
            found = _entries(*_as_attribute(*watch))
            if found is not None:
                entries.update({(id(entry[0]), entry[1]): entry for entry in found})
                cls = watch[0].cls if isinstance(watch[0], LookUp) else watch[0]
                if isinstance(cls, type):
                    classes[cls] = cls.__mro__
                else:
                    modules[id(cls)] = cls
            elif getattr(watch[0], watch[1], MISSING) is watch[2]:
                same.append(watch)
            else:
                self._alike.append(watch)
        self._entries = tuple(sorted(entries.values(), key=lambda entry: id(entry[0])))
        self._packed = _core.pack_entries(self._entries)
        self._classes, self._orders = tuple(classes), tuple(classes.values())
        self._modules = tuple(modules.values())
        self._holders, self._names, self._values = zip(*same, strict=True) if same else ((), (), ())

    def is_unchanged(self) -> bool:
        """True if they are what they were. First by identity, without code of Python for each."""
        now = map(getattr, self._holders, self._names, repeat(MISSING))
        same = (
            _core.entries_stand(self._packed)
            and all(map(is_, map(_mro, self._classes), self._orders))
            and all(map(is_, map(type, self._modules), repeat(ModuleType)))
            and all(map(is_, now, self._values))
        )
        if same:
            return all_unchanged(self._alike)
        return all_unchanged(self._all) and not any(name in held for held, name, _ in self._absent)


def _as_attribute(holder: Any, name: str, value: Any) -> tuple[Any, str, Any]:
    """The attribute whose identity decides, if it can, instead of what is computed of it or compared with it."""
    if isinstance(holder, LookUp) and value is None and holder.cls.__getattr__ is nn.Module.__getattr__:
        return holder.cls, "__getattr__", nn.Module.__getattr__
    if isinstance(value, Plain):
        now = getattr(holder, name, MISSING)
        if type(now) is tuple and is_as(now, value):  # of immutable values
            return holder, name, now
    return holder, name, value


def _entries(holder: Any, name: str, value: Any) -> list[Entry] | None:
    """The entries of dictionaries that decide what `getattr(holder, name, MISSING)` returns; None if others do too."""
    if type(holder) is ModuleType and name not in vars(ModuleType):
        own = vars(holder)
        return [(own, name, (value,))] if name in own and own[name] is value else None
    if type(holder) is not type or hasattr(vars(type).get(name), "__set__"):
        return None
    before: list[Entry] = []
    for cls in holder.__mro__:
        found = vars(cls).get(name, MISSING)
        fixed = bool(cls.__flags__ & _IMMUTABLE)
        if found is not MISSING:
            if found is not value or getattr(holder, name, MISSING) is not value:
                return None
            return before if fixed else [*before, (_dictionary(cls), name, (value,))]
        if not fixed:
            before.append((_dictionary(cls), name, ()))
    return before if value is MISSING and not hasattr(type, name) else None


def _dictionary(cls: type) -> dict[str, Any]:
    """What the view of a class's dictionary shows: a class has the same one always."""
    (found,) = gc.get_referents(vars(cls))
    return found
