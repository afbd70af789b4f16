# SPDX-License-Identifier: MIT
"""Where a search found code, and whether other code is there now: in variables, attributes and containers."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, lru_cache, partial, partialmethod
from itertools import chain, islice
from operator import is_not
from types import CodeType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ..runtime.instance_forward import without_links
from ..runtime.members import owner_of_class, slots_of
from ..runtime.purity import USER
from ..runtime.state import INTERNAL
from .unseen import DATA, WITH_DATA, Search, cell_value

__all__ = ["CONTAINERS", "Reached", "reference_to"]

_MANY = 256  # values that are compared of one container
_MOST = 1024  # objects that are compared of one place
_Names = frozenset[str] | None  # None for all
_Children = Callable[[Any, _Names], Iterable[Any]]
_CONTAINERS: dict[type, Callable[[Any], Iterable[Any]]] = {
    dict: lambda held: chain(dict.keys(held), dict.values(held)),
    list: list.__iter__,
    tuple: tuple.__iter__,
    deque: deque.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
    MappingProxyType: MappingProxyType.values,
    MethodType: lambda method: (method.__func__, method.__self__),
    partial: lambda made: (made.func, made.args, made.keywords),
    partialmethod: lambda made: (made.func, made.args, made.keywords),
    property: lambda made: (made.fget, made.fset, made.fdel),
    staticmethod: lambda made: (made.__func__,),
    classmethod: lambda made: (made.__func__,),
    cached_property: lambda made: (made.func,),
    weakref.ref: lambda reference: (reference(),),
}
_PLAIN = frozenset(k for k in DATA if k is torch.Size or not issubclass(k, tuple(_CONTAINERS)))
CONTAINERS = DATA - _PLAIN  # those that Python has, and no class of a user


class Reached:
    """The places through which a search came to code. Quick to compare, as it is in every call.

    Functions, classes, modules of torch and Python modules are compared by identity. Of containers, of a user's objects
    and of methods, what they hold is; of all other values, and of these objects, the types. Plain data is not code.
    Of containers with more than 256 values nothing is compared. No object is kept alive.

    Args: known: modules that are compared elsewhere: they, their classes and what is set on them.
    """

    def __init__(self, search: Search, known: Iterable[nn.Module] = ()) -> None:
        self._then: tuple[list[Callable[[], Any]], set[type]] | None = None
        self._is_empty = False
        compared = set(map(id, known))
        try:
            named: dict[int, tuple[dict[str, Any], set[str]]] = {}
            for held, names in search.globals:
                named.setdefault(id(held), (held, set()))[1].update(names)
            self._globals = list(named.values())
            self._roots = [reference_to(root) for root in search.roots if id(root) not in compared]
            self._functions = list(map(weakref.ref, search.functions))
            self._attributes = list(_attributes(search, compared))
            self._names = search.names
            self._is_empty = not (self._roots or self._globals or self._functions or self._attributes)
            found = self._find()
            if found is not None:
                self._then = list(map(reference_to, found[0])), found[1]
        except Exception:  # of an unusual metaclass: nothing is known, and the search is made again
            self._then = None

    def hold(self) -> bool:
        """True if no other code is there."""
        if self._is_empty:
            return True
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
        roots = [reference() for reference in self._roots]
        if any(root is None for root in roots):
            return None
        _add_code(roots, self._names, code, types)
        for held, names in self._globals:
            _add_code(map(held.get, names), self._names, code, types)
        for reference in self._functions:
            function = reference()
            if function is None:
                return None
            if function.__closure__ is not None:
                _add_code(map(cell_value, function.__closure__), self._names, code, types)
            others = (function.__defaults__, function.__kwdefaults__, function.__dict__)
            _add_code((function.__code__, *others), self._names, code, types)
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
        if issubclass(type(holder), ModuleType):
            yield reference, "", None, set(held if search.names is None else search.names)
            continue
        names = search.mentioned(held) & (without_links(vars(holder)).keys() - INTERNAL)
        if id(holder) in known:
            names = _with_children(held, names, type(holder))
            if names:
                yield reference, "", None, names
        else:
            yield reference, "", len(held), names
            yield reference, "_modules", len(held["_modules"]), set(held["_modules"])
    found: dict[type, bool] = {}
    for holder in search.holders:
        for base in (holder if issubclass(type(holder), type) else type(holder)).__mro__:
            found[base] = found.get(base, True) and id(holder) in known
    for base, compared in found.items():
        if owner_of_class(base) == USER:
            held = vars(base)
            special = {name for name in held if name[:2] == "__"} | search.mentioned(held)
            if not compared:
                yield weakref.ref(base), "", len(held), special
            elif names := _with_children(held, special, base):
                yield weakref.ref(base), "", None, names


def _with_children(held: Mapping[str, Any], names: Iterable[str], cls: type) -> set[str]:
    """Those of the attributes that hold something that may change; tuples of a layer of torch are its options."""
    kinds = {name: type(held[name]) for name in names if _children_of(type(held[name])) is not None}
    return {name for name, kind in kinds.items() if kind is not tuple or owner_of_class(cls) == USER}


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
    left = [value]
    found: list[Any] = []
    kinds: set[type] = set()
    seen: dict[int, Any] = {}
    while left:
        value = left.pop()
        kind = type(value)
        if kind in _PLAIN or id(value) in seen:
            continue
        seen[id(value)] = value
        if len(seen) > _MOST:
            return
        children = _children_of(kind)
        if children is not None:
            more = tuple(islice(children(value, names), _MANY + 1))
            if len(more) <= _MANY:
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
    values = next((values for container, values in _CONTAINERS.items() if issubclass(kind, container)), None)
    has_data = issubclass(kind, WITH_DATA)
    own = has_data or owner_of_class(kind) == USER
    if values is None and not own:
        return None
    members = slots_of(kind) if own else []

    def children(value: Any, names: _Names) -> Iterator[Any]:
        if values is not None:
            yield from values(value)
        if own:
            held = _dict_of(value)
            for name in held if names is None or has_data else held.keys() & names:
                yield held[name]
            for member in members:
                yield _slot(member, value)

    return children if own else lambda value, names: values(value)


@lru_cache(maxsize=1024)
def _is_code(kind: type) -> bool:
    """True if objects of this type can be called, or are Python modules or machine code of Python."""
    if not kind.__weakrefoffset__:  # it would be kept alive
        return False
    return issubclass(kind, (CodeType, ModuleType)) or any("__call__" in vars(base) for base in kind.__mro__)


def _slot(member: MemberDescriptorType, holder: Any) -> Any:
    try:
        return member.__get__(holder)
    except AttributeError:  # it is empty
        return None


def reference_to(value: Any) -> Callable[[], Any]:
    """A weak reference, or a strong one to an object that has none."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value
