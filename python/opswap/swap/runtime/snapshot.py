# SPDX-License-Identifier: MIT
"""Copies of plain Python values, and whether a value still is what its copy was taken of.

Comparing runs on every call of a rewritten forward, and torch.compile traces through it.
"""

from __future__ import annotations

import enum
import logging
import types
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from math import copysign
from typing import Any

import torch
from torch import Tensor, nn

from opswap._torch import slots_are_new_objects

from .members import (
    BOUND,
    MISSING,
    PARTS,
    attributes_of,
    contents_of,
    has_own_look_up,
    is_asked,
    is_numpy_scalar,
    is_plain,
    is_public,
    is_read_by_user,
    is_transparent,
    owner_of_class,
    slots_of,
    static_attribute,
)
from .purity import IMMUTABLE, USER

__all__ = ["AnyTensor", "Scalar", "Wanted", "is_as", "snapshot"]


@dataclass(frozen=True)
class Contents:
    """What a list, tuple, set, dict, functools.partial or bound method holds; keys: of a dict, maxlen: of a deque."""

    kind: type
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    length: int
    maxlen: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Plain:
    """A sequence of immutable values that are the same if they are equal, of these types; it is compared at once."""

    kind: type
    value: Any
    kinds: tuple[type, ...]


@dataclass(frozen=True)
class Scalar:
    """A number of NumPy."""

    kind: type
    unit: Any
    value: Any


@dataclass(frozen=True)
class Attributes:
    """Attributes of an object of a class written in Python; contents of what else it is, a dict for one.

    absent: names that its class has and the object has not.
    """

    kind: type
    names: tuple[str, ...]
    values: tuple[Any, ...]
    contents: Any
    absent: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answers:
    """What an object's own look-up returns for names; contents as of `Attributes`."""

    kind: type
    names: tuple[str, ...]
    values: tuple[Any, ...]
    contents: Any


@dataclass(frozen=True)
class Bound:
    """A method in C of an object, as the get of a dict; copies of a model share both."""

    method: Any
    own: Any
    value: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Bound:
        return self


@dataclass(frozen=True)
class AnyTensor:
    """Any tensor: it is read by the rewritten forward itself. names, values: attributes that were set on it."""

    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """Attributes that code reads of objects: names, None for all, and texts, those that may not be there.

    asked: (object, name) of all that was read from objects with a __getattribute__ written in Python.
    """

    names: Collection[str] | None = None
    texts: Collection[str] = ()
    asked: tuple[tuple[Any, str], ...] = ()

    def of(self, value: Any) -> dict[str, Any]:
        """The attributes of an object that matter, MISSING for those that it may get."""
        cls = type(value)
        held = dict(attributes_of(value))
        if static_attribute(cls, "__getattr__") is not MISSING or has_own_look_up(cls):
            return held
        if self.names is not None and is_read_by_user(cls):
            held = {k: v for k, v in held.items() if k in self.names}
        held.update((n, MISSING) for n in self.texts if n not in held and _may_be_set(cls, n))
        return held

    def absent(self, value: Any) -> tuple[str, ...]:
        """Names that code reads, which the object has of its class and may get for itself."""
        held = getattr(value, "__dict__", None)
        users = [b for b in type(value).__mro__ if owner_of_class(b) == USER]
        if not users or held is None:
            return ()
        names = self.names
        found = dict.fromkeys(
            n for b in users for n, v in vars(b).items() if is_public(n, v, names is not None and n in names)
        )
        return tuple(n for n in found if n not in held and (names is None or n in names))


def _may_be_set(cls: type, name: str) -> bool:
    """True if an object that has no attribute of this name may get one."""
    found = static_attribute(cls, name)
    return found is MISSING or isinstance(found, types.MemberDescriptorType)


_ALL = Wanted()


def snapshot(value: Any, wanted: Wanted = _ALL, path: tuple[int, ...] = ()) -> Any:
    """A copy to compare with later; the value itself if it is compared by identity.

    Args: path: ids of the containers around it.
    """
    if is_numpy_scalar(value):
        return Scalar(type(value), value.dtype, value.item())
    if is_plain(value) or id(value) in path:
        return value
    if isinstance(value, Tensor):
        return value if path else _tensor(value, wanted)
    if isinstance(value, enum.Enum):
        added = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        added.update((n, MISSING) for n in wanted.texts if not hasattr(value, n))
        kept = {"_name_": value._name_, **added}
        return Attributes(type(value), tuple(kept), tuple(kept.values()), None) if added else value
    if isinstance(value, (type, types.FunctionType, types.ModuleType, nn.Module)):
        return value
    path = (*path, id(value))
    if isinstance(value, BOUND):
        own = value.__self__
        if own is None or isinstance(own, (type, types.ModuleType)):
            return value
        return Bound(value, own, snapshot(own, wanted, path))
    held = contents_of(value)
    inside = _contents(held, value, wanted, path) if held is not None else None
    if held is not None and type(value) in PARTS:
        return inside
    if held is not None and not getattr(value, "__dict__", None) and not slots_of(type(value)):
        return inside
    if not is_transparent(value) or _is_identity(value):
        return value
    if wanted.names is not None and is_asked(type(value)):
        asked = tuple(name for holder, name in wanted.asked if holder is value)
        values = tuple(snapshot(getattr(value, n, MISSING), wanted, path) for n in asked)
        return Answers(type(value), asked, values, inside)
    kept = wanted.of(value)
    values = tuple(snapshot(v, wanted, path) for v in kept.values())
    return Attributes(type(value), tuple(kept), values, inside, wanted.absent(value))


def _tensor(value: Tensor, wanted: Wanted) -> AnyTensor:
    kept = {n: v for n, v in vars(value).items() if wanted.names is not None and n in wanted.names}
    return AnyTensor(tuple(kept), tuple(snapshot(v, wanted, (id(value),)) for v in kept.values()))


def _is_identity(value: Any) -> bool:
    """True for objects of the standard library that describe types, and for logs, of which a capture reads nothing."""
    if issubclass(type(value), logging.Logger):
        return True
    return type(value).__module__ in ("typing", "types", "re") and type(value) is not types.SimpleNamespace


def _contents(held: Any, value: Any, wanted: Wanted, path: tuple[int, ...]) -> Any:
    kind, keys, values = held
    if not keys and kind in (list, tuple) and all(map(_is_plainly_equal, values)):
        return Plain(kind, kind(values), tuple(map(type, values)))
    maxlen = (value.maxlen,) if isinstance(value, deque) else ()
    return Contents(kind, keys, tuple(snapshot(v, wanted, path) for v in values), len(values), maxlen)


def _is_plainly_equal(value: Any) -> bool:
    """True for a value that equals no other value of its type."""
    if isinstance(value, (bool, int, str, bytes, torch.device, torch.dtype)) or value is None:
        return is_plain(value)
    return type(value) is float and value != 0


def is_as(now: Any, then: Any) -> bool:
    """True if `now` is what the snapshot `then` was taken of, or another object that means the same."""
    if now is then:
        return True
    kind = type(then)
    if kind is Plain:
        # 1, 1.0 and True are equal.
        return type(now) is then.kind and now == then.value and tuple(map(type, now)) == then.kinds
    if kind is Scalar:
        if type(now) is not then.kind or now.dtype != then.unit:
            return False
        item = now.item()
        return is_as(item, then.value) or (type(item) not in IMMUTABLE and item == then.value)
    if kind is Contents:
        return _has_contents(now, then)
    if kind is Attributes:
        return _has_attributes(now, then)
    if kind is Answers:
        return _answers(now, then)
    if kind is Bound:
        return _is_bound_as(now, then)
    if kind is AnyTensor:
        return isinstance(now, Tensor) and _has_values(now, then)
    if kind is types.WrapperDescriptorType and slots_are_new_objects():
        return type(now) is kind and bool(now == then)
    if type(now) is not kind or not isinstance(then, IMMUTABLE):
        return False
    if now != then:
        return False
    # Equal values of one type may still differ.
    if kind is float:
        return then != 0 or copysign(1.0, now) == copysign(1.0, then)
    if kind is complex:
        return is_as(now.real, then.real) and is_as(now.imag, then.imag)
    if kind is Decimal:
        return bool(now.as_tuple() == then.as_tuple())
    if kind is range or kind is slice:
        return is_as(now.start, then.start) and is_as(now.stop, then.stop) and is_as(now.step, then.step)
    return True


def _has_contents(now: Any, then: Contents) -> bool:
    if type(now) is not then.kind:
        return False
    if then.kind is partial:
        now = (now.func, now.args, now.keywords)
    elif then.kind is types.MethodType:
        now = (now.__func__, now.__self__)
    if len(now) != then.length or (then.maxlen and now.maxlen != then.maxlen[0]):
        return False
    if then.keys:
        for (key, value), known, kept in zip(now.items(), then.keys, then.values):  # noqa: B905
            if not is_as(key, known) or not is_as(value, kept):
                return False
        return True
    for value, kept in zip(now, then.values):  # noqa: B905, SIM110
        if not is_as(value, kept):
            return False
    return True


def _is_bound_as(now: Any, then: Bound) -> bool:
    if now is then.method:
        return is_as(then.own, then.value)
    # torch.compile does not know whose method it is.
    if torch.compiler.is_compiling() or type(now) not in BOUND or now.__name__ != then.method.__name__:
        return False
    return is_as(now.__self__, then.value)


def _has_attributes(now: Any, then: Attributes) -> bool:
    if type(now) is not then.kind or (then.contents is not None and not is_as(now, then.contents)):
        return False
    if not _has_values(now, then):
        return False
    for name in then.absent:  # noqa: SIM110
        if name in now.__dict__:
            return False
    return True


def _has_values(now: Any, then: Attributes | AnyTensor) -> bool:
    for name, value in zip(then.names, then.values):  # noqa: B905, SIM110
        if not is_as(getattr(now, name, MISSING), value):
            return False
    return True


def _answers(now: Any, then: Answers) -> bool:
    """The attributes are read again; the object's own code runs, and may raise."""
    if type(now) is not then.kind or (then.contents is not None and not is_as(now, then.contents)):
        return False
    for name, value in zip(then.names, then.values):  # noqa: B905
        try:
            answer = getattr(now, name, MISSING)
        except Exception:
            return False
        if not is_as(answer, value):
            return False
    return True
