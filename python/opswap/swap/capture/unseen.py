# SPDX-License-Identifier: MIT
"""What code may write to that a trace does not see: of modules that are called as they are, and of their hooks.

A rewritten forward reads the state that its capture took for granted before it calls them. What they may write to and
the captured forward reads is found by names, as far as functions are reached from the modules.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..runtime import purity
from ..runtime.outside import Outside, read
from ..runtime.snapshot import attributes_of, contents_of, is_plain, owner_of_class
from ..runtime.state import INTERNAL, Reading
from .bytecode import reads, stores
from .element_writes import MUTATORS, element_writes

__all__ = ["LaterHooks", "what_may_change"]

_MANY = 20000  # values of one search
# Python runs other special methods of an object without naming them.
_NOT_CALLED = frozenset(
    {
        "__class_getitem__",
        "__copy__",
        "__deepcopy__",
        "__del__",
        "__delattr__",
        "__dir__",
        "__getstate__",
        "__hash__",
        "__init__",
        "__init_subclass__",
        "__new__",
        "__reduce__",
        "__reduce_ex__",
        "__repr__",
        "__set_name__",
        "__setattr__",
        "__setstate__",
        "__str__",
    }
)
_WRAPPERS = ("fget", "fset", "fdel", "__func__", "func")
_LISTS_OF_MODULES = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_SETTERS = (setattr, delattr, exec, eval)


class _Search:
    """What is reached from values by the names that code mentions.

    names: the attributes that are followed, None for all. follow: add those that reached functions mention.
    Afterwards: `containers` by their ids, and of the functions: the names of attributes and global variables that they
    store, the ids of cells, `anything` if the names are not known, `elements` if they write to those of containers.
    """

    def __init__(self, values: Iterable[Any], names: Iterable[str] | None = (), follow: bool = True) -> None:
        self.containers: dict[int, Any] = {}
        self.stored: set[str] = set()
        self.cells: set[int] = set()
        self.anything = self.elements = False
        self._names = None if names is None else set(names)
        self._follow = follow
        self._seen: dict[int, Any] = {}
        self._holders: list[Any] = []
        self._new = list(values)
        self._run()

    def _run(self) -> None:
        mentioned: Any = ()
        while self._new or mentioned != self._names:
            while self._new:
                self._look_at(self._new.pop())
            mentioned = None if self._names is None else set(self._names)
            parts = (v for holder in self._holders for v in self._parts(holder))
            self._new = [v for v in parts if id(v) not in self._seen and not is_plain(v)]

    def _look_at(self, value: Any) -> None:
        if id(value) in self._seen or is_plain(value):
            return
        self._seen[id(value)] = value
        if isinstance(value, (torch.Tensor, CodeType)):
            return
        if len(self._seen) > _MANY:
            self.anything = True
            self._new.clear()
            self._holders.clear()
        elif isinstance(value, FunctionType):
            self._look_in(value)
        elif isinstance(value, type):
            self._holders.append(value)
        elif isinstance(value, ModuleType):
            if purity.module_kind(value) == purity.USER:
                self._holders.append(value)
        elif any(value is f for f in _SETTERS):
            self.anything = True
        else:
            self._look_at_object(value)

    def _look_at_object(self, value: Any) -> None:
        for part in _WRAPPERS:
            if part in vars(type(value)):
                self._new.append(getattr(value, part, None))
        if isinstance(value, weakref.ref):
            self._new.append(value())
        if isinstance(value, _LISTS_OF_MODULES):
            self.containers[id(value)] = value
        held = None if isinstance(value, nn.Module) else contents_of(value)
        if held is not None:
            self._new += (*held[1], *held[2])
            if type(value) not in (tuple, partial, MethodType):
                self.containers[id(value)] = value
        if isinstance(value, nn.Module) or owner_of_class(type(value)) == purity.USER:
            self._holders.append(value)

    def _look_in(self, function: FunctionType) -> None:
        code = function.__code__
        if not self._follow or purity.owner(code.co_filename, function.__module__ or "") != purity.USER:
            return
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._new += map(_held, cells.values())
        self._new += (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        self._new += vars(function).values()  # as __wrapped__
        for part in _with_inner(code):
            found, written = reads(part), stores(part)
            self.stored |= written.names
            self.anything = self.anything or written.anything
            self.cells.update(id(cells[n]) for n in written.variables if n in cells)
            self.elements = self.elements or _writes_elements(part)
            if self._names is not None:
                self._names |= found.attributes | found.texts
                if found.dynamic:
                    self._names = None
            self._new += (function.__globals__[n] for n in found.names if n in function.__globals__)

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
                    if special or self._is_mentioned(name):
                        yield value
        for name, value in () if known else attributes_of(holder):
            if name not in INTERNAL and self._is_mentioned(name):
                yield value

    def _is_mentioned(self, name: str) -> bool:
        return name not in _NOT_CALLED if self._names is None else name in self._names


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _with_inner(inner)


def _writes_elements(code: CodeType) -> bool:
    found = element_writes(code)
    return found.anywhere or bool(found.variables) or not MUTATORS.isdisjoint(code.co_names)


def _held(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


def _hooks(module: nn.Module) -> list[Any]:
    """What runs beside the forward when the module is called."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def what_may_change(
    modules: Iterable[nn.Module], readers: Iterable[nn.Module], reading: Reading, outside: Outside
) -> str:
    """What the calls of modules may write to and a captured forward reads, in words; "" if nothing is known.

    Args: readers: the modules whose forwards were captured; reading, outside: what these read.
    """
    values: list[Any] = []
    for module in dict.fromkeys(m for called in modules for m in called.modules()):
        values += (vars(module).get("forward"), *_hooks(module))
        if owner_of_class(type(module)) == purity.USER:
            values.append(module)
    return _meeting(_Search(values, ("forward",)), tuple(readers), reading, outside)


def _meeting(written: _Search, readers: tuple[nn.Module, ...], reading: Reading, outside: Outside) -> str:
    """What was found to be written and is read."""
    if written.anything:
        return "an attribute of any name"
    names = None if reading.names is None else reading.names | reading.texts
    watched = {name for holder, name, _ in outside.watches if not isinstance(holder, CellType)}
    found = sorted(written.stored if names is None else written.stored & (names | watched))
    if found:
        return repr(found[0])
    cells = [h for h, _, _ in outside.watches if isinstance(h, CellType)]
    if not written.cells.isdisjoint(map(id, cells)):
        return "a variable of a closure"
    if not written.elements or not written.containers:
        return ""
    values = [read(h, n) for h, n, _ in outside.watches]
    known = _Search((*readers, *reading.modules, *reading.parents, *values), names, follow=False)
    common = [v for key, v in written.containers.items() if key in known.containers]
    return f"a {type(common[0]).__name__}" if common else ""


class LaterHooks:
    """Whether hooks of the modules that a rewritten forward calls may write to what it reads.

    A module may get them at any time. torch numbers all hooks of the process: none is new if the next number is as it
    was.
    """

    def __init__(self, readers: tuple[nn.Module, ...], reading: Reading, outside: Outside) -> None:
        known = Reading(reading.names, reading.texts, reading.modules, reading.parents)
        self._known = readers, known, outside
        self._number: int | None = None
        self._found = ""

    def __deepcopy__(self, memo: dict[int, Any]) -> LaterHooks:
        """A copy keeps the answer: hooks are shared with the original, and what they write to is not copied."""
        copied = LaterHooks(*copy.deepcopy(self._known, memo))
        copied._number, copied._found = self._number, self._found
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_number": None}  # another process has other numbers

    def conflict(self, module: nn.Module) -> str:
        """See `guards.Hooks`."""
        number = getattr(RemovableHandle, "next_id", None)
        if number is None or number != self._number:
            hooks = [h for m in module.modules() if m is not module for h in _hooks(m)]
            self._found = _meeting(_Search(hooks), *self._known) if hooks else ""
            self._number = number
        return self._found
