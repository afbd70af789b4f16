# SPDX-License-Identifier: MIT
"""Where a search found code, and whether other code is there now: in variables, attributes and containers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_not
from types import MemberDescriptorType
from typing import Any

from torch import nn

from ..runtime.instance_forward import without_links
from ..runtime.purity import USER
from ..runtime.snapshot import owner_of_class, slots_of
from ..runtime.state import INTERNAL
from .unseen import DATA, Search, cell_value

__all__ = ["Reached"]

_MANY = 256  # values of one container that are compared in every call
_VALUES: dict[type, Callable[[Any], Iterable[Any]]] = {
    dict: dict.values,
    list: list.__iter__,
    tuple: tuple.__iter__,
    deque: deque.__iter__,
    set: set.__iter__,
    frozenset: frozenset.__iter__,
}


class Reached:
    """The places through which a search came to code. Quick to compare, as it is in every call.

    What can be called is compared by identity, everything else by its type. Not compared is what is in containers of
    many values.

    Args: known: modules whose attributes and classes are compared elsewhere.
    """

    def __init__(self, search: Search, known: Iterable[nn.Module] = ()) -> None:
        below = set(map(id, known))
        holders = [h for h in search.holders if id(h) not in below and _has_dict(h)]
        named: dict[int, tuple[Mapping[str, Any], set[str]]] = {}
        for held, names in (*search.globals, *_attributes(search, holders)):
            named.setdefault(id(held), (held, set()))[1].update(names)
        self._sized = [held for held, _ in named.values()]
        self._sizes = list(map(len, self._sized))
        self._named = [(held, there) for held, names in named.values() if (there := held.keys() & names)]
        self._cells = list({id(c): c for c in search.variables}.values())
        self._slots = [(m, h) for h in search.holders if not isinstance(h, type) for m in slots_of(type(h))]
        containers = [(c, _values_of(c)) for c in search.containers.values()]
        self._containers = [(c, values) for c, values in containers if values is not None]
        self._signs = list(map(_sign, self._values()))
        self._contents = [_code_within(c, values) for c, values in self._containers]

    def hold(self) -> bool:
        """True if no other code is there."""
        if not (self._sized or self._cells or self._slots or self._containers):
            return True
        if list(map(len, self._sized)) != self._sizes:
            return False
        for value, sign in zip(self._values(), self._signs, strict=True):
            if value is not sign and type(value) is not sign:
                return False
        now = (_code_within(c, values) for c, values in self._containers)
        return all(map(_same, now, self._contents))

    def _values(self) -> list[Any]:
        values = [held.get(name) for held, names in self._named for name in names]
        values += map(cell_value, self._cells)
        return values + [_slot(member, holder) for member, holder in self._slots]


def _attributes(search: Search, holders: Iterable[Any]) -> Iterator[tuple[Mapping[str, Any], Iterable[str]]]:
    """The dictionaries of these objects, and of the classes of users, with the names in them that code mentions."""
    for holder in holders:
        names = search.mentioned(vars(holder))
        if isinstance(holder, nn.Module):
            names &= without_links(vars(holder)).keys() - INTERNAL
            yield holder._modules, holder._modules.keys()
        if not isinstance(holder, type):
            yield vars(holder), names
    classes = dict.fromkeys(holder if isinstance(holder, type) else type(holder) for holder in holders)
    for base in dict.fromkeys(base for cls in classes for base in cls.__mro__):
        if owner_of_class(base) == USER:
            held = vars(base)
            yield held, search.mentioned(held) | {name for name in held if name[:2] == "__"}


def _has_dict(holder: Any) -> bool:
    return isinstance(getattr(holder, "__dict__", None), Mapping)


def _slot(member: MemberDescriptorType, holder: Any) -> Any:
    try:
        return member.__get__(holder)
    except AttributeError:  # it is empty
        return None


def _sign(value: Any) -> Any:
    """The value itself if it can be called, else its type; a class stands for itself."""
    return value if callable(value) else type(value)


def _values_of(container: Any) -> Callable[[Any], Iterable[Any]] | None:
    return next((values for kind, values in _VALUES.items() if isinstance(container, kind)), None)


def _code_within(container: Any, values: Callable[[Any], Iterable[Any]]) -> tuple[list[Any], set[type]]:
    """What can be called in a container and in those that it holds, and the types of the other objects there."""
    if len(container) > _MANY:
        return [], set()
    called: list[Any] = []
    types: set[type] = set()
    left = [(container, values)]
    for _ in range(_MANY):
        if not left:
            break
        container, values = left.pop()
        for value in tuple(values(container))[:_MANY]:
            kind = type(value)
            if kind in _VALUES:
                left.append((value, _VALUES[kind]))
            elif kind in DATA:
                continue
            elif callable(value):
                called.append(value)
            else:
                types.add(kind)
    return called, types


def _same(now: tuple[list[Any], set[type]], then: tuple[list[Any], set[type]]) -> bool:
    return len(now[0]) == len(then[0]) and not any(map(is_not, now[0], then[0])) and now[1] == then[1]
