# SPDX-License-Identifier: MIT
"""What code may write to that a trace does not see: of modules that are called as they are, and of their hooks.

A rewritten forward reads the state that its capture took for granted before it calls them. What they may write to and
the captured forward reads is found by names, as far as functions are reached from the modules.
"""

from __future__ import annotations

import sys
import weakref
from argparse import Namespace
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache, partial, partialmethod, singledispatchmethod
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from ..runtime import purity
from ..runtime.instance_forward import without_links
from ..runtime.members import (
    MISSING,
    attributes_of,
    contents_of,
    is_plain,
    owner_of_class,
    static_attribute,
    with_inner,
)
from ..runtime.outside import Outside, read
from ..runtime.state import INTERNAL
from .bytecode import reads, resolved, stores
from .class_entries import is_of_user
from .element_writes import writes_to_others

__all__ = [
    "DATA",
    "LISTS_OF_MODULES",
    "WITH_DATA",
    "Search",
    "cell_value",
    "code_of",
    "hooks_below",
    "own_code",
    "part_of",
    "search_calls",
    "set_on",
    "what_may_change",
]

_MANY = 20000  # values of one search
# Python runs other special methods of an object without naming them.
# Copies and pickles add `__slotnames__` to a class.
_SPECIAL = """
    class_getitem copy deepcopy del delattr dir getstate hash init init_subclass new reduce reduce_ex repr
    set_name setattr setstate slotnames str
"""
_NOT_CALLED = frozenset(f"__{name}__" for name in _SPECIAL.split())
_MAKES = frozenset({"__init__", "__new__", "__post_init__"})
_USES = _MAKES | {"__call__", "__enter__", "__exit__"}  # of objects that code makes of a class
# What wraps a function; other objects may run code when they are asked for attributes.
_WRAPPERS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    cached_property: ("func",),
    partial: ("func", "args", "keywords"),
    partialmethod: ("func", "args", "keywords"),
    singledispatchmethod: ("func", "dispatcher"),
    type(lru_cache(max)): ("__wrapped__",),
}
_OF_LAZY = ("in_channels", "in_features", "num_features")  # written by the first call
_GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks")
# Classes of Python whose attributes hold what a user puts there.
WITH_DATA = (UserDict, UserList, ChainMap, SimpleNamespace, Namespace)
LISTS_OF_MODULES = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_SETTERS = (setattr, delattr, exec, eval)
# Classes whose instances run no code of their own.
_PLAIN = (NoneType, bool, bytes, complex, float, int, str, tuple, list, set, frozenset, dict, OrderedDict)
DATA = frozenset((*_PLAIN, torch.Tensor, nn.Parameter, torch.Size, torch.dtype, torch.device))


class Search:
    """What is reached from values by the names that code mentions.

    names: the attributes that are followed, None for all. follow: add those that reached functions mention.
    Afterwards: `seen` and `containers` by their ids, `holders` of attributes, `functions`, and of these: the `globals`
    that they name; the names of attributes and global variables that they store, the ids of cells, `anything` if the
    names are not known, `elements` if they write to those of containers. `of_modules` are those of the names that are
    stored in known modules only, and these.
    """

    def __init__(self, values: Iterable[Any], names: Iterable[str] | None = (), follow: bool = True) -> None:
        self.containers: dict[int, Any] = {}
        self.stored: set[str] = set()
        self.of_modules: dict[str, list[nn.Module]] = {}
        self._of_parts: set[tuple[FunctionType, str, str]] = set()
        self._indirect: set[str] = set()
        self.cells: set[int] = set()
        self.anything = self.elements = False
        self._names = None if names is None else set(names)
        self._follow = follow
        self.seen: dict[int, Any] = {}
        self.holders: list[Any] = []
        self.globals: list[tuple[dict[str, Any], Iterable[str]]] = []
        self.functions: list[FunctionType] = []
        self.roots = tuple(values)
        self._new = list(self.roots)
        self._run()
        self._note_parts()

    def _run(self) -> None:
        mentioned: Any = ()
        while self._new or mentioned != self._names:
            while self._new:
                with suppress(Exception):  # as of a weakref.proxy whose object is gone
                    self._look_at(self._new.pop())
            mentioned = None if self._names is None else set(self._names)
            for holder in self.holders:
                with suppress(Exception):  # as of a module whose attributes were cleared
                    parts = tuple(self._parts(holder))
                    self._new += (v for v in parts if id(v) not in self.seen and not is_plain(v))

    def _note_parts(self) -> None:
        """What a method of a module stores in its parts is stored in these modules, if all such parts are modules."""
        for function, part, name in self._of_parts:
            found = [part_of(h, part) for h in self.holders if _has_method(h, function)]
            self.of_modules.setdefault(name, []).extend(v for v in found if isinstance(v, nn.Module))
            if not found or not all(isinstance(v, nn.Module) for v in found):
                self.stored.add(name)
        for name in self.stored & self.of_modules.keys():
            del self.of_modules[name]
        self.stored |= self.of_modules.keys()

    def _look_at(self, value: Any) -> None:
        if id(value) in self.seen or is_plain(value):
            return
        self.seen[id(value)] = value
        if isinstance(value, (torch.Tensor, CodeType)):
            return
        if len(self.seen) > _MANY:
            self.anything = True
            self._new.clear()
            self.holders.clear()
        elif isinstance(value, FunctionType):
            self._look_in(value)
        elif isinstance(value, type):
            self.holders.append(value)
        elif isinstance(value, ModuleType):
            if purity.module_kind(value) == purity.USER:
                self.holders.append(value)
        elif any(value is f for f in _SETTERS):
            self.anything = True
        else:
            self._look_at_object(value)

    def _look_at_object(self, value: Any) -> None:
        own = isinstance(value, nn.Module) or owner_of_class(type(value)) == purity.USER
        for cls, parts in _WRAPPERS.items():
            if issubclass(type(value), cls):
                self._new += (getattr(value, part) for part in parts)
        if issubclass(type(value), WITH_DATA):  # their methods, which read the attributes, are Python's
            self._new += vars(value).values()
        # Reading one may add to it.
        self.elements = self.elements or (self._follow and isinstance(value, defaultdict))
        if isinstance(value, weakref.ref):
            self._new.append(value())
        if isinstance(value, LISTS_OF_MODULES):
            self.containers[id(value)] = value
        held = None if isinstance(value, nn.Module) else contents_of(value)
        if held is not None:
            self._new += (*held[1], *held[2])
            if type(value) not in (tuple, frozenset, partial, MethodType):
                self.containers[id(value)] = value
        if own:
            self.holders.append(value)

    def _look_in(self, function: FunctionType) -> None:
        code = function.__code__
        if not self._follow:
            return
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self.functions.append(function)
        self._new += map(cell_value, cells.values())
        self._new += (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._new += vars(function).values()  # as __wrapped__
        if purity.owner_of(function) != purity.USER:
            return  # such as a decorator of torch, which holds the function that it calls
        for part in with_inner(code):
            found, written = reads(part), stores(part)
            if part is code and function.__name__ not in _MAKES:
                self._of_parts |= {(function, *p) for p in written.of_parts}
            else:
                self.stored |= {name for _, name in written.of_parts}
            if function.__name__ in _MAKES:  # what it stores in the new object is new
                self.stored |= written.of_others
            else:
                self.stored |= written.names
                self.anything = self.anything or written.anything
            self.cells.update(id(cells[n]) for n in written.variables if n in cells)
            self.elements = self.elements or writes_to_others(part)
            if self._names is not None:
                self._names |= found.attributes | found.texts
                self._indirect |= found.indirect
                if found.dynamic:
                    self._names = None
            variables = function.__globals__
            self.globals.append((variables, found.names))
            self._new += (variables[n] for n in found.names if n in variables)
            with suppress(ImportError):  # a relative import outside of a package
                self._new += [sys.modules.get(resolved(n, level, variables)) for n, level in found.imports]

    def _parts(self, holder: Any) -> Iterator[Any]:
        """What code gets of an object, a class or a Python module by the names that it mentions."""
        if isinstance(holder, ModuleType):
            yield from (v for n, v in tuple(vars(holder).items()) if self._is_mentioned(n))
            return
        known = isinstance(holder, type)
        for base in (holder if known else type(holder)).__mro__:
            if owner_of_class(base) == purity.USER:
                for name, value in tuple(vars(base).items()):
                    special = not known and name.startswith("__") and name not in _NOT_CALLED
                    special = special or (known and name in _USES)
                    if special or self._is_mentioned(name):
                        yield value
        is_module = isinstance(holder, nn.Module)
        # In place of a generated forward, that of the class.
        hidden = (
            INTERNAL | (vars(holder).keys() - without_links(vars(holder)).keys()) if is_module else INTERNAL
        )
        for name in self._indirect:
            found = part_of(holder, name)
            if found is not MISSING or _looks_up(holder):
                self._look_up_by(found)
        for name, value in () if known else attributes_of(holder):
            if name not in hidden and self._is_mentioned(name):
                yield value
        if self._follow and is_module:
            every = isinstance(holder, LISTS_OF_MODULES)
            yield from (m for n, m in holder._modules.items() if every or self._is_mentioned(n))

    def _look_up_by(self, text: Any) -> None:
        """Code looks up an attribute by a text that an object holds."""
        if isinstance(text, str) and self._names is not None:
            self._names.add(text)
        elif text is not None:
            self._names = None

    def holds(self, name: str) -> bool:
        """True if something that was reached has an attribute of this name."""
        for holder in self.holders:
            parts = ("_parameters", "_buffers", "_modules") if isinstance(holder, nn.Module) else ()
            held = (vars(holder).get(k, ()) for k in parts)
            if name in getattr(holder, "__dict__", ()) or any(name in h for h in held):
                return True
            cls = holder if isinstance(holder, type) else type(holder)
            if any(name in vars(b) for b in cls.__mro__ if owner_of_class(b) == purity.USER):
                return True
        return False

    @property
    def names(self) -> frozenset[str] | None:
        """The attributes that code may look up, None for all."""
        return None if self._names is None else frozenset(self._names)

    def mentioned(self, names: Iterable[str]) -> set[str]:
        """The attributes of these that code may look up."""
        return set(filter(self._is_mentioned, tuple(names)))

    def _is_mentioned(self, name: str) -> bool:
        return name not in _NOT_CALLED if self._names is None else name in self._names


def part_of(holder: Any, name: str) -> Any:
    """What an object or its class holds under a name, or what finds it; MISSING if nothing. No code runs."""
    of_class = static_attribute(holder if isinstance(holder, type) else type(holder), name)
    if hasattr(type(of_class), "__set__"):  # a property, which comes first
        return of_class
    own = getattr(holder, "__dict__", {})
    for held in (own, *(own.get(k, {}) for k in ("_modules", "_parameters", "_buffers"))):
        if name in held:
            return held[name]
    return of_class


def _has_method(holder: Any, function: FunctionType) -> bool:
    """True for a module that has this function as a method, or in a property."""
    if not isinstance(holder, nn.Module):
        return False
    entries = (v for base in type(holder).__mro__ for v in vars(base).values())
    return any(v is function or (isinstance(v, property) and v.fget is function) for v in entries)


def _looks_up(holder: Any) -> bool:
    """True for an object whose class finds attributes by code of the user."""
    return any(is_of_user(type(holder), name) for name in ("__getattr__", "__getattribute__"))


def cell_value(cell: CellType) -> Any:
    """What the variable holds, None if nothing."""
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _hooks(module: nn.Module) -> list[Any]:
    """What runs beside the forward when the module is called."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def _global_hooks() -> list[Any]:
    held = (getattr(nn.modules.module, name, {}) for name in _GLOBAL_HOOKS)
    return [hook for hooks in held for hook in hooks.values()]


def hooks_below(module: nn.Module) -> list[Any]:
    """The hooks of every module below this one, and those of all modules."""
    own = [h for m in module.modules() if m is not module for h in _hooks(m)]
    return own + _global_hooks()


def set_on(module: nn.Module) -> dict[str, Any]:
    """What is set on the instance and may run code, by names; without what opswap has set."""
    return {k: v for k, v in code_of(without_links(vars(module))).items() if k not in INTERNAL}


def code_of(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the attributes that may run code of their own."""
    return {k: v for k, v in attributes.items() if type(v) not in DATA}


def own_code(modules: Iterable[nn.Module]) -> list[Any]:
    """What holds code of the user that calls of these modules run: modules, functions set on one of them, hooks."""
    values: list[Any] = []
    for module in modules:
        values += _hooks(module)
        if owner_of_class(type(module)) == purity.USER:
            values.append(module)
        else:
            values += set_on(module).values()
    return values


def search_calls(modules: Iterable[nn.Module]) -> Search:
    """What calls of these modules run."""
    below = dict.fromkeys(m for called in modules for m in called.modules())
    found = Search((*own_code(below), *_global_hooks()), ("forward",))
    for module in below:
        found.containers.pop(id(module), None)  # a list of modules that is called itself
    if any(isinstance(m, LazyModuleMixin) for m in below):
        found.stored.update(_OF_LAZY)
    return found


def what_may_change(
    written: Search, readers: Iterable[nn.Module], names: frozenset[str] | None, outside: Outside
) -> str:
    """What the code that was found may write to and a captured forward reads, in words; "" if nothing is known.

    Args: readers: the modules of which the forward reads attributes; names: of these attributes, None for all;
        outside: what else it reads.
    """
    readers, watches = tuple(readers), outside.watches
    if written.anything:
        return "an attribute of any name"
    if not written.stored and not written.cells and not (written.elements and written.containers):
        return ""
    values = [read(h, n) for h, n, _ in watches]
    known = Search((*readers, *values), names, follow=False)
    watched = {name for holder, name, _ in watches if not isinstance(holder, CellType)}
    found = sorted(written.stored if names is None else written.stored & (names | watched))
    for name in found:
        if names is not None and name in written.of_modules and name not in names:
            # A class, or another object, keeps its attribute of this name.
            modules = (*readers, *(h for h, n, _ in watches if n == name))
            if any(m is module for m in written.of_modules[name] for module in modules):
                return repr(name)
        elif name in watched or known.holds(name):  # else it is read of tensors, as mean or shape
            return repr(name)
    if any(isinstance(h, CellType) and id(h) in written.cells for h, _, _ in watches):
        return "a variable of a closure"
    if not written.elements or not written.containers:
        return ""
    common = [v for key, v in written.containers.items() if key in known.containers]
    return f"a {type(common[0]).__name__}" if common else ""
