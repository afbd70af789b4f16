# SPDX-License-Identifier: MIT
"""Copies of what traced code may write to, by which its writes are found and undone."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import is_
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from torch import nn

from ..runtime.members import MISSING, is_read_by_user, slots_of
from ..runtime.outside import Scope
from ..runtime.patched import unpatched

__all__ = ["Ledger", "Written"]

_CONTAINERS = (list, dict, set, deque)


@dataclass(frozen=True)
class Written:
    """What traced code may have read and written; what else has changed was written by another thread.

    alone: there is no other thread. read, stored: names of attributes and variables, None for any. elements: it may
    write to elements of any container; else to those of `containers`, by their ids.
    """

    alone: bool
    read: Container[str] | None
    stored: Container[str] | None
    elements: bool
    containers: Container[int]

    def owns(self, holder: Any, name: str) -> bool:
        """True if the traced code may have written to an attribute.

        A Python module has names that only code with a `global` statement writes, which is not traced. The modules of
        the model are copies, which no other thread knows.
        """
        if self.stored is None or name in self.stored or isinstance(holder, nn.Module):
            return True
        return self.alone and not isinstance(holder, (ModuleType, Scope))

    def owns_elements(self, value: Any) -> bool:
        """True if the traced code may have written to the elements of a container."""
        return self.alone or self.writes_elements(value)

    def writes_elements(self, value: Any) -> bool:
        """True if the traced code has what it needs to write to the elements of a container."""
        return self.elements or id(value) in self.containers

    def reads(self, value: Any, name: str) -> bool:
        """True if the traced code depends on an attribute of an object."""
        return self.read is None or name in self.read or not is_read_by_user(type(value))


class Ledger:
    """What objects held, and what names were bound to, before traced code ran."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any, Any]] = {}
        self._fields: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._scopes: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._slots: list[tuple[Any, MemberDescriptorType, Any]] = []
        self._members: dict[type, list[MemberDescriptorType]] = {}

    def copy(self, value: Any) -> None:
        """Remember the elements of a container and the attributes of an object."""
        if id(value) in self._copies:
            return
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            attributes = {k: (v, _elements(v)) for k, v in tuple(attributes.items())}
        self._copies[id(value)] = value, _elements(value), attributes
        cls = type(value)
        if cls not in self._members:
            self._members[cls] = list(filter(_is_declared, slots_of(cls)))
        self._slots += [(value, member, _held(member, value)) for member in self._members[cls]]

    def field(self, holder: Any, name: str) -> None:
        """Remember an attribute of a Python module, a class, a function or a cell."""
        if (id(holder), name) not in self._fields:
            self._fields[id(holder), name] = holder, name, _own(holder, name)

    def scope(self, holder: Any) -> None:
        """Remember all attributes that a Python module, a class or a module of a model has."""
        self._scopes.setdefault(id(holder), (holder, dict(vars(holder))))

    def _compared(self) -> Iterator[tuple[Any, str, Any]]:
        """(holder, name, what it held) of the fields, and of those in scopes that are not as they were."""
        yield from self._fields.values()
        for holder, then in self._scopes.values():
            now = vars(holder)
            if not now.keys() >= then.keys() or not all(map(is_, map(now.get, then), then.values())):
                yield from ((holder, name, unpatched(value)) for name, value in then.items())

    def undo(self, written: Written, restore: bool = True) -> tuple[list[str], list[str]]:
        """Undo what the traced code wrote; only look if `restore` is false.

        Returns: in words, what it wrote to, and what another thread wrote to that it reads.
        """
        ours: list[str] = []
        others: list[str] = []
        for holder, name, then in self._compared():
            if _own(holder, name) is not then:
                owner = getattr(holder, "__qualname__", None) or getattr(holder, "__name__", "a closure")
                owns = written.owns(holder, name)
                (ours if owns else others).append(f"{owner}.{name}")
                if owns and restore:
                    with suppress(Exception):  # a metaclass may refuse; the others are restored all the same
                        _set(holder, name, then)
        for value, elements, attributes in self._copies.values():
            if isinstance(attributes, dict):
                _compare(value, attributes, written, restore, ours, others)
            if elements is not None and not _same(value, elements):
                owns = written.owns_elements(value)
                (ours if owns else others).append(f"a {type(value).__name__} that it does not own")
                if owns and restore:
                    _refill(value, elements)
        for value, member, then in self._slots:
            name = member.__name__
            if _held(member, value) is then:
                continue
            if written.owns(value, name):
                ours.append(f"the attribute {name!r}")
                if restore:
                    member.__delete__(value) if then is MISSING else member.__set__(value, then)
            elif written.reads(value, name):
                others.append(f"the attribute {name!r}")
        return ours, others


def _is_declared(member: MemberDescriptorType) -> bool:
    """True for a member of `__slots__`; one in C, as `torch.Generator._cdata`, may be a new object at each read."""
    return "__slots__" in vars(member.__objclass__)


def _held(member: MemberDescriptorType, value: Any) -> Any:
    try:
        return member.__get__(value)
    except AttributeError:
        return MISSING


def _own(holder: Any, name: str) -> Any:
    if isinstance(holder, (CellType, FunctionType)):
        try:
            return getattr(holder, name, MISSING)
        except ValueError:  # an empty cell
            return MISSING
    return unpatched(vars(holder).get(name, MISSING))


def _set(holder: Any, name: str, value: Any) -> None:
    if value is MISSING:
        delattr(holder, name)
    else:
        setattr(holder, name, value)


def _elements(value: Any) -> Any:
    """A copy of a container's elements; None for an object that is not a container."""
    if not isinstance(value, _CONTAINERS):
        return None
    if isinstance(value, dict):
        return dict(dict.items(value))
    for kind in (list, set, deque):
        if isinstance(value, kind):
            return list(kind.__iter__(value))
    return None


def _same(value: Any, elements: Any) -> bool:
    now = _elements(value)
    if isinstance(elements, dict):
        return list(now) == list(elements) and all(now[k] is v for k, v in elements.items())
    return len(now) == len(elements) and all(a is b for a, b in zip(now, elements, strict=True))


def _refill(value: Any, elements: Any) -> None:
    for kind in _CONTAINERS:
        if isinstance(value, kind):
            kind.clear(value)
            (kind.extend if hasattr(kind, "extend") else kind.update)(value, elements)
            return


def _compare(
    holder: Any,
    then: dict[str, tuple[Any, Any]],
    written: Written,
    restore: bool,
    ours: list[str],
    others: list[str],
) -> None:
    """Compare the attributes with what they were, and restore those that the traced code has changed."""
    now = holder.__dict__
    in_place = written.writes_elements(now)  # as `vars(self)[name] = value` does
    kind = "the module's attribute" if isinstance(holder, nn.Module) else "the attribute"
    for name in (*then, *(k for k in tuple(now) if k not in then)):
        value, elements = then.get(name, (MISSING, None))
        what = f"{kind} {name!r}"
        if now.get(name, MISSING) is not value:
            if in_place or written.owns(holder, name):
                ours.append(what)
                if restore:
                    now[name] = value
                    if value is MISSING:
                        del now[name]
            elif written.reads(holder, name):
                others.append(what)
        if elements is not None and not _same(value, elements):
            if written.owns_elements(value) or (isinstance(holder, nn.Module) and type(value) in _CONTAINERS):
                ours.append(what)
                if restore:
                    _refill(value, elements)
            elif written.reads(holder, name):
                others.append(what)
