# SPDX-License-Identifier: MIT
"""Where a search found code, and whether other code is there now: in variables, attributes and containers."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from operator import is_not
from types import MemberDescriptorType, ModuleType
from typing import Any

from torch import nn

from ..runtime.instance_forward import without_links
from ..runtime.purity import USER
from ..runtime.snapshot import owner_of_class, slots_of
from ..runtime.state import INTERNAL
from .unseen import DATA, Search, cell_value

__all__ = ["Reached"]

_MANY = 256  # values of one container that are compared in every call
_KINDS: tuple[tuple[type, Callable[[Any], Iterable[Any]]], ...] = (
    (dict, dict.values),
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (deque, deque.__iter__),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
)


class Reached:
    """The places through which a search came to code. Quick to compare, as it is in every call.

    Functions, classes, Python modules and a user's objects are compared by identity, everything else by its type; of a
    container, what is in it. Not compared is what is in containers of many values.

    Args: known: modules whose classes are compared elsewhere, and their attributes by type.
    """

    def __init__(self, search: Search, known: Iterable[nn.Module] = ()) -> None:
        named: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for held, names in search.globals:
            named.setdefault(id(held), (held, set()))[1].update(names)
        self._globals = [(held, len(held), held.keys() & names) for held, names in named.values()]
        # Nothing is kept alive but code: objects may hold the tensors of a step.
        self._functions = list(map(weakref.ref, search.functions))
        self._attributes = list(_attributes(search, set(map(id, known))))
        self._signs = list(map(_sign, self._values() or ()))

    def hold(self) -> bool:
        """True if no other code is there."""
        if not (self._globals or self._functions or self._attributes):
            return True
        values = self._values()
        if values is None:
            return False
        for value, (exact, kind) in zip(values, self._signs, strict=True):
            if value is exact or type(value) is kind:
                continue
            if type(exact) is not _Contents or not exact.same(value):
                return False
        return True

    def _values(self) -> list[Any] | None:
        """What is at the places; None if an object is gone, or has other attributes."""
        values: list[Any] = []
        for held, size, names in self._globals:
            if len(held) != size:
                return None
            values += map(held.get, names)
        for reference in self._functions:
            function = reference()
            if function is None:
                return None
            values += map(cell_value, function.__closure__ or ())
            values += (function.__defaults__, function.__kwdefaults__, function.__dict__)
        for holder_of, part, size, names in self._attributes:
            holder = holder_of()
            held = _dict_of(holder, part)
            if holder is None or (size is not None and len(held) != size):
                return None
            values += map(held.get, names)
        return values


def _attributes(
    search: Search, known: set[int]
) -> Iterator[tuple[Callable[[], Any], str, int | None, set[str]]]:
    """Of objects, classes and Python modules: a reference, one of its dictionaries, and names that code mentions."""
    for holder in search.holders:
        held, reference = _dict_of(holder), _reference(holder)
        names = search.mentioned(held)
        if reference is None or not isinstance(held, dict):
            continue
        if "_modules" not in held:
            yield reference, "", len(held), names
        elif id(holder) in known:
            names = {name for name in names - INTERNAL if _sign(held[name])[1] is None}
            if names and owner_of_class(type(holder)) == USER:
                yield reference, "", None, names & without_links(held).keys()
        else:
            yield reference, "", len(held), names & (without_links(held).keys() - INTERNAL)
            yield reference, "_modules", len(held["_modules"]), set(held["_modules"])
    others = (h for h in search.holders if id(h) not in known)
    classes = dict.fromkeys(h if issubclass(type(h), type) else type(h) for h in others)
    for base in dict.fromkeys(base for cls in classes for base in cls.__mro__):
        if owner_of_class(base) == USER:
            special = {name for name in vars(base) if name[:2] == "__"}
            yield weakref.ref(base), "", len(vars(base)), special | search.mentioned(vars(base))


def _dict_of(holder: Any, part: str = "") -> Mapping[str, Any]:
    """The attributes of an object or a class, without code of the user; of a module, those that `part` names."""
    try:
        held = object.__getattribute__(holder, "__dict__")
    except AttributeError:  # it has none
        return {}
    return held[part] if part else held


class _Contents:
    """The code in a container and in those that it holds, and the types of what else is there, but for plain data."""

    def __init__(self, container: Any) -> None:
        self.kind = type(container)
        self.code: list[Any] = []
        self.types: set[type] = set()
        left, number = [container], 0
        while left:
            found = _values_in(left.pop())
            number += len(found)
            if number > _MANY:
                self.code, self.types = [], set()
                return
            for value in found:
                kind = type(value)
                if _contents_of(kind) is not None:
                    left.append(value)
                elif _is_code(kind):
                    self.code.append(value)
                elif kind not in DATA:
                    self.types.add(kind)

    def same(self, value: Any) -> bool:
        """True if the same is in this container."""
        if type(value) is not self.kind:
            return False
        now = _Contents(value)
        same = len(now.code) == len(self.code) and not any(map(is_not, now.code, self.code))
        return same and now.types == self.types


_NOTHING = object()


def _sign(value: Any) -> tuple[Any, type | None]:
    """What is compared by identity, or the contents of a container, or the type."""
    if _contents_of(type(value)) is not None:
        return _Contents(value), None
    return (value, None) if _is_code(type(value)) else (_NOTHING, type(value))


def _values_in(container: Any) -> Sequence[Any]:
    values = _contents_of(type(container))
    return tuple(islice(values(container), _MANY + 1)) if values is not None else ()


@lru_cache(maxsize=1024)
def _contents_of(kind: type) -> Callable[[Any], Iterable[Any]] | None:
    """How to get what an object of this type holds: a container, or an object of a user that has slots alone."""
    for container, values in _KINDS:
        if issubclass(kind, container):
            return values
    if owner_of_class(kind) != USER or kind.__dictoffset__:
        return None
    members = slots_of(kind)
    return lambda value: [_slot(member, value) for member in members]


@lru_cache(maxsize=1024)
def _is_code(kind: type) -> bool:
    """True if objects of this type are functions, classes or Python modules, or may have methods of a user."""
    if kind in DATA:
        return False
    return hasattr(kind, "__call__") or issubclass(kind, ModuleType) or owner_of_class(kind) == USER  # noqa: B004


def _slot(member: MemberDescriptorType, holder: Any) -> Any:
    try:
        return member.__get__(holder)
    except AttributeError:  # it is empty
        return None


def _reference(holder: Any) -> Callable[[], Any] | None:
    try:
        return weakref.ref(holder)
    except TypeError:  # of an object with slots, or of a weakref.proxy
        return None
