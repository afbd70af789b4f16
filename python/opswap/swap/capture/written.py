# SPDX-License-Identifier: MIT
"""Copies of what traced code may write to, by which its writes are found and taken back."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from types import CellType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from torch import nn

from opswap._torch import SYMBOLIC_TRACE

from ..runtime.outside import Scope
from ..runtime.snapshot import MISSING, slots_of

__all__ = ["Ledger", "unpatched"]

_CONTAINERS = (list, dict, set, deque)


def unpatched(value: Any) -> Any:
    """The function that torch.fx, or a capture, has replaced for the time of a trace."""
    patched = isinstance(value, FunctionType) and value.__globals__.get("__name__", "") in (
        SYMBOLIC_TRACE,
        f"{__package__}.tracer",
    )
    return getattr(value, "__wrapped__", value) if patched else value


class Ledger:
    """What objects held, and what names stood for, before traced code ran."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[Any, Any, Any]] = {}
        self._fields: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._slots: list[tuple[Any, MemberDescriptorType, Any]] = []

    def copy(self, value: Any) -> None:
        """Remember the elements of a container and the attributes of an object."""
        if id(value) in self._copies:
            return
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            attributes = {k: (v, _elements(v)) for k, v in attributes.items()}
        self._copies[id(value)] = value, _elements(value), attributes
        self._slots += [(value, member, _held(member, value)) for member in slots_of(type(value))]

    def field(self, holder: Any, name: str) -> None:
        """Remember an attribute of a Python module, a class, a function or a cell."""
        if (id(holder), name) not in self._fields:
            self._fields[id(holder), name] = holder, name, _own(holder, name)

    def undo(self, names: Container[str] | None) -> list[str]:
        """Take back what was written; returns what was written to, in words.

        Args: names: of the attributes that the traced code may have written, None for any. Another thread wrote to a
            global variable of another name, for code with a `global` statement is not traced.
        """
        written = []
        for holder, name, then in self._fields.values():
            if isinstance(holder, (ModuleType, Scope)) and names is not None and name not in names:
                continue
            if _own(holder, name) is not then:
                owner = getattr(holder, "__qualname__", None) or getattr(holder, "__name__", "a closure")
                written.append(f"{owner}.{name}")
                _set(holder, name, then)
        for value, elements, attributes in self._copies.values():
            if isinstance(attributes, dict):
                kind = "the module's attribute" if isinstance(value, nn.Module) else "the attribute"
                written += [f"{kind} {name!r}" for name in _restore(value.__dict__, attributes)]
            if elements is not None and not _same(value, elements):
                written.append(f"a {type(value).__name__} that it does not own")
                _refill(value, elements)
        for value, member, then in self._slots:
            if _held(member, value) is not then:
                written.append(f"the attribute {member.__name__!r}")
                member.__delete__(value) if then is MISSING else member.__set__(value, then)
        return written


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
    """A copy of a container's elements; None for what is none."""
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


def _restore(now: dict[str, Any], then: dict[str, tuple[Any, Any]]) -> list[str]:
    """Bring attributes back to what they were; returns the names of those that had changed."""
    changed = [k for k in now if k not in then]
    for name in changed:
        del now[name]
    for name, (value, elements) in then.items():
        if now.get(name, MISSING) is not value:
            changed.append(name)
            now[name] = value
        if elements is not None and not _same(value, elements):
            changed.append(name)
            _refill(value, elements)
    return changed
