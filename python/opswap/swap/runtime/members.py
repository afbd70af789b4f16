# SPDX-License-Identifier: MIT
"""What an object consists of: its contents, attributes and slots, the entries of its class, and whose class it is."""

from __future__ import annotations

import inspect
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from .purity import IMMUTABLE, USER, module_kind, owner, owner_of

__all__ = [
    "BOUND",
    "HEAP_TYPE",
    "MISSING",
    "PARTS",
    "attributes_of",
    "contents_of",
    "has_own_look_up",
    "is_added",
    "is_asked",
    "is_numpy_scalar",
    "is_plain",
    "is_public",
    "is_read_by_user",
    "is_transparent",
    "owner_of_class",
    "slots_of",
    "static_attribute",
    "static_base",
    "with_inner",
]

_SEQUENCES = (list, tuple, deque)
_MAPPINGS = (dict, OrderedDict, defaultdict, types.MappingProxyType)
_SETS = (set, frozenset)
PARTS = (partial, types.MethodType)
BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_C_METHODS = (types.ClassMethodDescriptorType, types.MethodDescriptorType, types.WrapperDescriptorType)
# Entries that statements of Python, and dataclasses, make.
_OF_ABSTRACT = "_abc_impl"  # which classes are registered
_ENTRIES = """
    abstractmethods all annotations builtins cached dataclass_fields dataclass_params dict doc file
    firstlineno hash loader match_args module name orig_bases package parameters path slotnames slots spec
    static_attributes weakref
"""
_MADE = frozenset(f"__{name}__" for name in _ENTRIES.split())
HEAP_TYPE = 1 << 9  # set by every class statement


class MISSING:
    """Represents an attribute that does not exist."""


def is_plain(value: Any) -> bool:
    """True for a value that cannot change and is compared by what it is."""
    return type(value) in IMMUTABLE or is_numpy_scalar(value)


def is_numpy_scalar(value: Any) -> bool:
    return any(c.__name__ == "generic" and c.__module__ == "numpy" for c in type(value).__mro__[1:])


def is_transparent(value: Any) -> bool:
    """True if all that an object is can be read by Python: its attributes, and the contents of a container.

    A class written in C may have more state, which cannot be watched.
    """
    for cls in type(value).__mro__:
        if cls in (object, *_SEQUENCES, *_MAPPINGS, *_SETS, types.SimpleNamespace):
            continue
        if not cls.__flags__ & HEAP_TYPE or any(_is_made_in_c(n, v, cls) for n, v in vars(cls).items()):
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


def with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code, and that of the functions and classes inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_inner(constant)


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
        return owner_of(value) == USER
    wrappers = (property, staticmethod, classmethod, types.MemberDescriptorType, types.GetSetDescriptorType)
    if isinstance(value, (types.ModuleType, type, *BOUND, *_C_METHODS, *wrappers)):
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


def static_base(cls: type) -> type:
    """The class written in C of which instances have the layout: object for most."""
    return next(b for b in cls.__mro__ if not b.__flags__ & HEAP_TYPE)


def is_read_by_user(cls: type) -> bool:
    """True if the methods of a class are all the user's own, so that a capture knows which attributes they read."""
    bases = (
        b for b in cls.__mro__ if b.__flags__ & HEAP_TYPE and b.__module__ not in ("abc", "enum", "typing")
    )
    return all(owner_of_class(b) == USER for b in bases)


def has_own_look_up(cls: type) -> bool:
    """True for a class with a __getattribute__ written in Python."""
    return isinstance(static_attribute(cls, "__getattribute__"), types.FunctionType)


def is_asked(cls: type) -> bool:
    """True for a class with a __getattribute__ of the user, whose look-ups a capture sees."""
    function = static_attribute(cls, "__getattribute__")
    if not isinstance(function, types.FunctionType):
        return False
    return owner_of(function) == USER
