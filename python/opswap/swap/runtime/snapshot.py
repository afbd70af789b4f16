# SPDX-License-Identifier: MIT
"""Copies of plain Python values, and whether a value still is what its copy was taken of.

Comparing runs on every call of a rewritten forward, and torch.compile traces through it.
"""

from __future__ import annotations

import enum
import inspect
import logging
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from math import copysign
from typing import Any

import torch
from torch import Tensor, nn

from opswap._torch import slots_are_new_objects

from .purity import IMMUTABLE, USER, module_kind, owner

__all__ = [
    "MISSING",
    "AnyTensor",
    "Scalar",
    "Wanted",
    "attributes_of",
    "contents_of",
    "has_own_look_up",
    "is_added",
    "is_as",
    "is_plain",
    "is_public",
    "is_read_by_user",
    "is_transparent",
    "owner_of_class",
    "slots_of",
    "snapshot",
    "static_attribute",
]

_SEQUENCES = (list, tuple, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict, types.MappingProxyType)
_SETS = (set, frozenset)
_PARTS = (partial, types.MethodType)
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_C_METHODS = (types.ClassMethodDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType)
# Entries that statements of Python, and dataclasses, make.
_OF_ABSTRACT = "_abc_impl"  # which classes are registered
_MADE = frozenset(
    f"__{name}__"
    for name in (
        "abstractmethods",
        "all",
        "annotations",
        "builtins",
        "cached",
        "dataclass_fields",
        "dataclass_params",
        "dict",
        "doc",
        "file",
        "firstlineno",
        "hash",
        "loader",
        "match_args",
        "module",
        "name",
        "orig_bases",
        "package",
        "parameters",
        "path",
        "slotnames",
        "slots",
        "spec",
        "static_attributes",
        "weakref",
    )
)
_HEAP_TYPE = 1 << 9  # set by every class statement


class MISSING:
    """Represents an attribute that does not exist."""


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


def is_plain(value: Any) -> bool:
    """True for a value that cannot change and is compared by what it is."""
    return type(value) in IMMUTABLE or _is_numpy_scalar(value)


def _is_numpy_scalar(value: Any) -> bool:
    return any(c.__name__ == "generic" and c.__module__ == "numpy" for c in type(value).__mro__[1:])


def is_transparent(value: Any) -> bool:
    """True if all that an object is can be read by Python: its attributes, and the contents of a container.

    A class written in C may have more state, which cannot be watched.
    """
    for cls in type(value).__mro__:
        if cls in (object, *_SEQUENCES, *_MAPPINGS, *_SETS, types.SimpleNamespace):
            continue
        if not cls.__flags__ & _HEAP_TYPE or any(_is_made_in_c(n, v, cls) for n, v in vars(cls).items()):
            return False
        slots = sum(isinstance(v, types.MemberDescriptorType) for v in vars(cls).values())
        # A class statement adds at most a dict and a list of weak references.
        if cls.__basicsize__ - cls.__base__.__basicsize__ > 8 * (slots + 2):
            return False
    return True


def _is_made_in_c(name: str, value: Any, cls: type) -> bool:
    """True for an entry that a class has only if C made it."""
    if isinstance(value, types.BuiltinFunctionType):
        return value.__self__ is cls
    if isinstance(value, types.GetSetDescriptorType):
        return value.__objclass__ is cls and name not in ("__dict__", "__weakref__")
    return isinstance(value, _C_METHODS) and value.__objclass__ is cls


def contents_of(value: Any) -> tuple[type, tuple[Any, ...], tuple[Any, ...]] | None:
    """(kind, keys, values) of a container, also of a subclass; None for an object that is not a container."""
    if type(value) is partial:
        return partial, (), (value.func, value.args, value.keywords)
    if type(value) is types.MethodType:
        return types.MethodType, (), (value.__func__, value.__self__)
    for kind in _MAPPINGS:
        if isinstance(value, kind):
            held = value if kind is types.MappingProxyType else dict.items(value)
            pairs = tuple(held.items() if kind is types.MappingProxyType else held)
            return type(value), tuple(k for k, _ in pairs), tuple(v for _, v in pairs)
    for kind in _SEQUENCES:
        if isinstance(value, kind) and not isinstance(value, torch.Size):
            return type(value), (), tuple(kind.__iter__(value))
    for kind in _SETS:
        if isinstance(value, kind):
            return type(value), (), tuple(kind.__iter__(value))
    return None


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an instance: those of its dict and its slots."""
    yield from tuple(getattr(value, "__dict__", {}).items())
    for member in slots_of(type(value)):
        try:
            yield member.__name__, member.__get__(value)
        except AttributeError:
            continue


def slots_of(cls: type) -> list[types.MemberDescriptorType]:
    """The slots of a class and its bases."""
    members = [v for base in cls.__mro__ for v in vars(base).values()]
    found = [m for m in members if isinstance(m, types.MemberDescriptorType)]
    # Classes in C have some that cannot be read.
    slots = [(m, vars(m.__objclass__).get("__slots__", ())) for m in found]
    return [m for m, own in slots if not m.__name__.startswith("__") or m.__name__ in own]


def owner_of_class(cls: type) -> str:
    """Whose class it is: USER, LIBRARY, STATEFUL, or that of torch or opswap."""
    for value in vars(cls).values():
        if isinstance(value, types.FunctionType) and value.__module__ == cls.__module__:
            inner = value
            with suppress(ValueError):  # it wraps itself
                inner = inspect.unwrap(value)  # of what a decorator of torch returns
            code = getattr(inner, "__code__", value.__code__)
            return owner(code.co_filename, cls.__module__)
    module = sys.modules.get(cls.__module__)
    if module is None:
        return USER
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith((".py", ".pyc")):
        in_c = cls.__module__ in sys.builtin_module_names or file is not None
        return module_kind(module) if in_c or module_kind(module) != USER else USER
    return owner(file, cls.__module__)


def is_added(value: Any) -> bool:
    """True for an entry that other code may have set in a library or a class of it, not for the library's own code."""
    if isinstance(value, types.FunctionType):
        return owner(value.__code__.co_filename, value.__module__ or "") == USER
    wrappers = (property, staticmethod, classmethod, types.MemberDescriptorType, types.GetSetDescriptorType)
    if isinstance(value, (types.ModuleType, type, *_BOUND, *_C_METHODS, *wrappers)):
        return False
    return is_plain(value) or contents_of(value) is not None or owner_of_class(type(value)) == USER


def is_public(name: str, value: Any, asked: bool = False) -> bool:
    """True unless an entry of a class or a Python module is one that Python makes, or a special method.

    Args: asked: code reads the attribute by this name.
    """
    if not name.startswith("__"):
        return asked or name != _OF_ABSTRACT
    return name not in _MADE and (asked or (is_added(value) and not isinstance(value, types.FunctionType)))


def static_attribute(cls: type, name: str) -> Any:
    """What a class or its bases have under a name, without running code; MISSING if nothing."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return MISSING


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


def is_read_by_user(cls: type) -> bool:
    """True if the methods of a class are all the user's own, so that a capture knows which attributes they read."""
    bases = (
        b for b in cls.__mro__ if b.__flags__ & _HEAP_TYPE and b.__module__ not in ("abc", "enum", "typing")
    )
    return all(owner_of_class(b) == USER for b in bases)


def has_own_look_up(cls: type) -> bool:
    """True for a class with a __getattribute__ written in Python."""
    return isinstance(static_attribute(cls, "__getattribute__"), types.FunctionType)


def _is_asked(cls: type) -> bool:
    """True for a class with a __getattribute__ of the user, whose look-ups a capture sees."""
    function = static_attribute(cls, "__getattribute__")
    if not isinstance(function, types.FunctionType):
        return False
    return owner(function.__code__.co_filename, function.__module__ or "") == USER


def snapshot(value: Any, wanted: Wanted = _ALL, path: tuple[int, ...] = ()) -> Any:
    """A copy to compare with later; the value itself if it is compared by identity.

    Args: path: ids of the containers around it.
    """
    if _is_numpy_scalar(value):
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
    if isinstance(value, _BOUND):
        own = value.__self__
        if own is None or isinstance(own, (type, types.ModuleType)):
            return value
        return Bound(value, own, snapshot(own, wanted, path))
    held = contents_of(value)
    inside = _contents(held, value, wanted, path) if held is not None else None
    if held is not None and type(value) in _PARTS:
        return inside
    if held is not None and not getattr(value, "__dict__", None) and not slots_of(type(value)):
        return inside
    if not is_transparent(value) or _is_identity(value):
        return value
    if wanted.names is not None and _is_asked(type(value)):
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
    if torch.compiler.is_compiling() or type(now) not in _BOUND or now.__name__ != then.method.__name__:
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
