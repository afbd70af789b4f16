# SPDX-License-Identifier: MIT
"""Where a search found code, and whether other code is there now: in variables, attributes and containers."""

from __future__ import annotations

import weakref
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import islice
from operator import is_not
from types import MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from torch import nn

from ..runtime.instance_forward import without_links
from ..runtime.purity import USER
from ..runtime.snapshot import owner_of_class, slots_of
from ..runtime.state import INTERNAL
from .unseen import DATA, Search, cell_value

__all__ = ["Reached"]

_MANY = 256  # values that are compared of one place
_Names = frozenset[str] | None  # None for all
_Children = Callable[[Any, _Names], Iterable[Any]]
_CONTAINERS: dict[type, Callable[[Any], Iterable[Any]]] = {
    dict: dict.values,
    list: list.__iter__,
    tuple: tuple.__iter__,
    deque: deque.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
    MappingProxyType: MappingProxyType.values,
    MethodType: lambda method: (method.__func__, method.__self__),
    partial: lambda made: (made.func, made.args, made.keywords),
}
_PLAIN = DATA - _CONTAINERS.keys()
_WITH_DATA = (UserDict, UserList, ChainMap)


class Reached:
    """The places through which a search came to code. Quick to compare, as it is in every call.

    Functions, classes, modules of torch and Python modules are compared by identity. Of containers, of a user's objects
    and of methods, what they hold is; of all other values, and of these objects, the types. Plain data is not code.
    Of more than 256 values at one place nothing is compared. Nothing is kept alive.

    Args: known: modules whose classes are compared elsewhere, and what is set on them.
    """

    def __init__(self, search: Search, known: Iterable[nn.Module] = ()) -> None:
        self._then: tuple[list[Callable[[], Any]], set[type]] | None = None
        try:
            named: dict[int, tuple[dict[str, Any], set[str]]] = {}
            for held, names in search.globals:
                named.setdefault(id(held), (held, set()))[1].update(names)
            self._globals = [(held, len(held), held.keys() & names) for held, names in named.values()]
            self._functions = list(map(weakref.ref, search.functions))
            self._attributes = list(_attributes(search, set(map(id, known))))
            self._names = search.names
            found = self._find()
            if found is not None:
                self._then = list(map(_reference, found[0])), found[1]
        except Exception:  # of an unusual metaclass: nothing is known, and the search is made again
            self._then = None

    def hold(self) -> bool:
        """True if no other code is there."""
        if self._then is None:
            return False
        try:
            found = self._find()
        except Exception:  # as above
            return False
        if found is None or found[1] != self._then[1] or len(found[0]) != len(self._then[0]):
            return False
        return not any(map(is_not, found[0], [reference() for reference in self._then[0]]))

    def _find(self) -> tuple[list[Any], set[type]] | None:
        """The code at the places, and the types of what else is there; None if a function or a module is gone."""
        code: list[Any] = []
        types: set[type] = set()
        for held, size, names in self._globals:
            if len(held) != size:
                return None
            _add_code(map(held.get, names), self._names, code, types)
        for reference in self._functions:
            function = reference()
            if function is None:
                return None
            if function.__closure__ is not None:
                _add_code(map(cell_value, function.__closure__), self._names, code, types)
            others = (function.__defaults__, function.__kwdefaults__, function.__dict__)
            _add_code(others, self._names, code, types)
        for holder_of, part, size, names in self._attributes:
            holder = holder_of()
            held = _dict_of(holder)
            if part:
                held = held.get(part, {})
            if holder is None or (size is not None and len(held) != size):
                return None
            _add_code(map(held.get, names), self._names, code, types)
        return code, types


def _attributes(
    search: Search, known: set[int]
) -> Iterator[tuple[Callable[[], Any], str, int | None, set[str]]]:
    """Of modules, classes and Python modules: a reference, which attributes, and names in them that code mentions.

    Of these attributes also their number, if it tells that one came; which: all, or those in one of them.
    """
    for holder in search.holders:
        if not issubclass(type(holder), (nn.Module, ModuleType)):
            continue  # it is at a place
        held, reference = _dict_of(holder), weakref.ref(holder)
        names = search.mentioned(held)
        if issubclass(type(holder), ModuleType):
            yield reference, "", len(held), names
            continue
        names &= without_links(vars(holder)).keys() - INTERNAL
        if id(holder) not in known:
            yield reference, "", len(held), names
            yield reference, "_modules", len(held["_modules"]), set(held["_modules"])
        elif owner_of_class(type(holder)) == USER:
            yield reference, "", None, {name for name in names if type(held[name]) not in _PLAIN}
    others = (h for h in search.holders if id(h) not in known)
    classes = dict.fromkeys(h if issubclass(type(h), type) else type(h) for h in others)
    for base in dict.fromkeys(base for cls in classes for base in cls.__mro__):
        if owner_of_class(base) == USER:
            special = {name for name in vars(base) if name[:2] == "__"}
            yield weakref.ref(base), "", len(vars(base)), special | search.mentioned(vars(base))


def _dict_of(holder: Any) -> Mapping[str, Any]:
    """The attributes of an object or a class, without code of the user."""
    try:
        return object.__getattribute__(holder, "__dict__")
    except AttributeError:  # it has none
        return {}


def _add_code(values: Iterable[Any], names: _Names, code: list[Any], types: set[type]) -> None:
    """Add the code in these values, and the types of what else is there and is no plain data.

    Args: names: of an object, the attributes that are looked at.
    """
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            continue
        children = _children_of(kind)
        if children is not None:
            _add_code_within(value, names, code, types)
        elif _is_code(kind):
            code.append(value)
        else:
            types.add(kind)


def _add_code_within(value: Any, names: _Names, code: list[Any], types: set[type]) -> None:
    left, number = [value], 0
    found: list[Any] = []
    kinds: set[type] = set()
    seen: dict[int, Any] = {}
    while left:
        value = left.pop()
        kind = type(value)
        if kind in _PLAIN or id(value) in seen:
            continue
        seen[id(value)] = value
        children = _children_of(kind)
        if children is not None:
            more = tuple(islice(children(value, names), _MANY + 1))
            number += len(more)
            if number > _MANY:
                return
            left += more
            if kind not in _CONTAINERS:
                kinds.add(kind)
        elif _is_code(kind):
            found.append(value)
        else:
            kinds.add(kind)
    code += found
    types |= kinds


@lru_cache(maxsize=1024)
def _children_of(kind: type) -> _Children | None:
    """How to get what an object of this type holds; None if that is not looked at."""
    if issubclass(kind, (nn.Module, type, ModuleType)):
        return None
    for container, values in _CONTAINERS.items():
        if issubclass(kind, container):
            return lambda value, names: values(value)
    if owner_of_class(kind) != USER and not issubclass(kind, _WITH_DATA):
        return None
    members = slots_of(kind)

    def children(value: Any, names: _Names) -> Iterable[Any]:
        held = _dict_of(value)
        for name in held if names is None or kind in _WITH_DATA else held.keys() & names:
            yield held[name]
        for member in members:
            yield _slot(member, value)

    return children


@lru_cache(maxsize=1024)
def _is_code(kind: type) -> bool:
    """True if objects of this type can be called, are Python modules, or run code as attributes of a class."""
    names = {"__call__", "__get__"}
    return issubclass(kind, ModuleType) or any(names & vars(base).keys() for base in kind.__mro__)


def _slot(member: MemberDescriptorType, holder: Any) -> Any:
    try:
        return member.__get__(holder)
    except AttributeError:  # it is empty
        return None


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value
