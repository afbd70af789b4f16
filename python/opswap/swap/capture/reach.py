# SPDX-License-Identifier: MIT
"""Everything outside of its arguments that a traced forward can reach: it is watched, or the forward is refused.

It is found by names: from the traced module, through the attributes, globals, closures and containers that the code
that runs may read. Code written in C that may answer otherwise the next time, and objects whose state Python cannot
see, are refused when code mentions them.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import operator
import threading
from abc import ABCMeta
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor, nn

from ..runtime import purity
from ..runtime.global_state import state_behind
from ..runtime.members import (
    MISSING,
    attributes_of,
    contents_of,
    has_own_look_up,
    is_added,
    is_plain,
    is_public,
    is_read_by_user,
    is_transparent,
    owner_of_class,
    static_attribute,
)
from ..runtime.outside import Outside, read
from ..runtime.patched import unpatched
from ..runtime.snapshot import Wanted, snapshot
from ..runtime.state import INTERNAL, Reading
from ..runtime.virtual import look_up, virtual
from .class_entries import (
    WRAPPERS,
    functions_in,
    givers,
    has_own,
    is_fixed,
    is_of_user,
    public_names,
)
from .element_writes import MUTATORS
from .kinds import is_constant, is_pure_class
from .written import Ledger, Written

__all__ = ["Reach"]

_BUILTINS = (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    WrapperDescriptorType,
)
_SLOTS = (GetSetDescriptorType, MemberDescriptorType)
_MANY = 20000  # objects that a forward may reach
_OF_FUNCTIONS = frozenset(
    {"__annotations__", "__code__", "__defaults__", "__doc__", "__kwdefaults__", "__name__", "__qualname__"}
)
_OF_CLASSES = frozenset({"__base__", "__bases__", "__mro__", "__name__", "__qualname__"})
_NOT_INHERITED = frozenset(
    {"__annotations__", "__doc__", "__module__"}
)  # reading them from a class may create them
# Special methods without which Python answers otherwise; an object's class may get them later.
_SPECIAL = """
    bool contains eq format getattr getattribute getitem iter len ne reversed str
"""
_FALL_BACK = tuple(f"__{name}__" for name in _SPECIAL.split())
_FALL_BACK_OF_LAYERS = ("__bool__", "__eq__", "__getattribute__", "__len__")
_WRITE_ANY = frozenset({"__delattr__", "__setattr__"})  # methods that write to an attribute of any name


class Reach:
    """What is reached from one module.

    refuse: makes the exception for a reason. names: attributes that code reads or writes; `look_for` adds to them;
    loaded: those that it reads. classes: code runs isinstance checks. functions: by their code. members: (class, name)
    of each function, by the function's id.
    """

    def __init__(self, root: nn.Module, refuse: Callable[[str], Exception]) -> None:
        self.refuse = refuse
        self.tree = {id(m) for m in root.modules()}
        self.ledger = Ledger()
        self.names: set[str] = set()
        self.loaded: set[str] = set()
        self.stored: set[str] = set()
        self.texts: set[str] = set()
        self.dynamic = self.classes = False
        self.functions: dict[CodeType, list[FunctionType]] = {}
        self.members: dict[int, list[tuple[type, str]]] = {}
        self.modules: dict[nn.Module, None] = {}
        self.parents: dict[nn.Module, None] = {}
        self.counted: dict[nn.Module, None] = {}
        self.listed: dict[nn.Module, None] = {}
        self._seen: dict[int, Any] = {}
        self._holders: list[tuple[Callable[[Any, Iterable[str]], None], Any]] = []
        self._watched: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._special: set[tuple[int, str]] = set()  # of these, what stands in for a method of the user
        self._abstract: dict[type, None] = {}
        self._layers: dict[type, None] = {}  # whose classes of the user have no look-up of their own
        self._queries: dict[int, tuple[Callable[[], Any], Any]] = {}

    def look_for(self, names: Iterable[str], stored: Iterable[str] = (), unread: Iterable[str] = ()) -> None:
        """Code that is about to run reads these attributes of any object that it gets, and writes the `stored` ones.

        Args: unread: those of the names that it only writes.
        """
        every = set(names)
        new, written = every - self.names, set(stored) - self.stored
        self.loaded |= every - set(unread)
        self.names |= new
        self.stored |= written
        for look, holder in tuple(self._holders):
            if written:
                self._note_fields(holder, written)
            if new:
                look(holder, new)

    def look_everywhere(self) -> None:
        """Code that is about to run reads attributes by names that are not known in advance."""
        self.dynamic = True
        for look, holder in tuple(self._holders):
            look(holder, self.names)

    def watch(self, holder: Any, name: str, what: str) -> None:
        """Watch an attribute of a Python module, class, function or cell, and follow its value."""
        if (id(holder), name) not in self._watched:
            self.ledger.field(holder, name)
            value = read(holder, name)
            self._watched[id(holder), name] = holder, name, value
            self.reach(value, what)

    def count_children(self, module: nn.Module) -> None:
        """Code reads all children of a module."""
        self.parents[module] = self.counted[module] = None
        self.reach(module, "self")
        for name, child in tuple(module._modules.items()):
            self.reach(child, name)

    def ask(self, function: Callable[[], Any]) -> None:
        """Watch the state of torch that code can read."""
        if id(function) not in self._queries:
            self._queries[id(function)] = function, function()

    def reach(self, value: Any, what: str) -> None:
        """Follow a value that the forward can get, `what` in words; refuses a state that cannot be watched."""
        value = unpatched(value)
        if id(value) in self._seen:
            return
        state = state_behind(value)
        if state is not None:
            self.ask(state)
        if is_plain(value) or value is MISSING or isinstance(value, (Tensor, CodeType)):
            return
        if len(self._seen) > _MANY:
            raise self.refuse(f"{what} leads to more than {_MANY} objects")
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            self._reach_layer(value, what)
        elif isinstance(value, FunctionType):
            self.functions.setdefault(value.__code__, []).append(value)
            self._hold(self._look_in_function, value)
        elif isinstance(value, type):
            self._reach_class(value, what)
        elif isinstance(value, ModuleType):
            self._reach_module(value, what)
        elif isinstance(value, _BUILTINS):
            self._reach_builtin(value, what)
        elif isinstance(value, enum.Enum):
            self.reach(type(value), what)
        elif isinstance(value, WRAPPERS):
            for part in ("fget", "fset", "__func__", "func", "args", "keywords"):
                self.reach(getattr(value, part, None), what)
        elif not isinstance(value, _SLOTS):
            self._reach_object(value, what)

    # --- kinds of values ---------------------------------------------------------------------------------------------

    def _reach_object(self, value: Any, what: str) -> None:
        kind = type(value)
        if issubclass(kind, logging.Logger):
            self._hold(partial(self._look_in_log, what), value)
            return
        parts = kind in (partial, MethodType)
        if not parts and not is_transparent(value):
            if isinstance(value, (operator.attrgetter, operator.methodcaller)):
                self.look_for(n for a in value.__reduce__()[1] if isinstance(a, str) for n in a.split("."))
            elif not is_constant(value):
                name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
                raise self.refuse(f"{what} is a {name}, whose state a capture cannot watch")
            return
        self.ledger.copy(value)
        if kind.__module__ != "builtins":
            self.reach(kind, what)
            self._look_for_special(kind, _FALL_BACK)
        held = contents_of(value)
        for part in (*held[1], *held[2]) if held is not None else ():
            self.reach(part, what)
        if not parts:
            self._hold(self._look_in_object, value)
        elif kind is partial:
            self._hold(partial(self._look_in_partial, what), value)

    def _reach_layer(self, module: nn.Module, what: str) -> None:
        if id(module) not in self.tree:
            raise self.refuse(f"{what} is a {type(module).__qualname__}, which is not a submodule")
        self.modules[module] = None
        self.ledger.copy(module)
        self.reach(type(module), what)
        self._look_for_special(type(module), _FALL_BACK_OF_LAYERS)
        if owner_of_class(type(module)) == purity.USER and not is_of_user(type(module), "__getattr__"):
            self._layers[type(module)] = None
        self._hold(self._look_in_layer, module)

    def _reach_class(self, cls: type, what: str) -> None:
        if isinstance(cls, ABCMeta):
            self._abstract[cls] = None
        if cls is torch.finfo:  # without an argument it uses the default dtype; calls of a class are not seen
            self.ask(torch.get_default_dtype)
        users = [b for b in cls.__mro__ if owner_of_class(b) == purity.USER]
        if not users and not is_pure_class(cls):
            raise self.refuse(f"{what} is {cls.__module__}.{cls.__qualname__}, whose results may change")
        for base in users:
            for name, value in tuple(vars(base).items()):
                for function in functions_in(value):
                    places = self.members.setdefault(id(function), [])
                    places += [(c, name) for c in givers(cls, name)]
                    self.reach(function, f"{base.__qualname__}.{name}")
        if type(cls) is not type and owner_of_class(type(cls)) == purity.USER:
            self.reach(type(cls), what)
        if users or not is_fixed(cls):
            self._hold(self._look_in_class, cls)

    def _look_for_special(self, cls: type, names: Iterable[str]) -> None:
        """Watch the special methods that a class of the user does not have; existing ones are watched when they run."""
        if owner_of_class(cls) == purity.USER:
            for name in names:
                if not is_of_user(cls, name):
                    self._special.add((id(cls), name))
                    self.watch(cls, name, f"{cls.__qualname__}.{name}")

    def _reach_module(self, module: ModuleType, what: str) -> None:
        kind = purity.module_kind(module)
        if kind == purity.STATEFUL:
            raise self.refuse(f"{what} is the module {module.__name__}, whose results may change")
        self._hold(self._look_in_module if kind == purity.USER else self._look_in_library, module)

    def _reach_builtin(self, function: Any, what: str) -> None:
        name = None if purity.is_effect(function) else purity.refused_builtin(function)
        if name is not None:
            raise self.refuse(f"{what} is {name}(), whose results may change")
        if purity.is_query(function):
            self.ask(function)
        own = getattr(function, "__self__", None)
        if own is not None and not isinstance(own, (ModuleType, type)):
            self.reach(own, what)
            if getattr(function, "__name__", "") == "__getattribute__":
                self.look_everywhere()

    # --- attributes --------------------------------------------------------------------------------------------------

    def _hold(self, look: Callable[[Any, Iterable[str]], None], holder: Any) -> None:
        self._holders.append((look, holder))
        self._note_fields(holder, self.stored)
        look(holder, self.names)

    def _note_fields(self, holder: Any, names: Iterable[str]) -> None:
        if isinstance(holder, (ModuleType, type, FunctionType)):
            for name in names:
                self.ledger.field(holder, name)

    def _look_in_function(self, function: FunctionType, names: Iterable[str]) -> None:
        for name in names:
            own = name in function.__dict__ or name in _OF_FUNCTIONS
            if own or (name in self.texts and not hasattr(function, name)):
                self.watch(function, name, f"{function.__qualname__}.{name}")

    def _look_in_class(self, cls: type, names: Iterable[str]) -> None:
        for name in (*names, *public_names(cls)) if self.dynamic else names:
            found = givers(cls, name)
            for giver in found:
                self._look_in_one(giver, name, len(found) > 1 or name in self.texts)

    def _look_in_one(self, cls: type, name: str, absent: bool) -> None:
        """Args: absent: it matters that the class has no such attribute."""
        if name in _NOT_INHERITED and (owner_of_class(cls) != purity.USER or not has_own(cls, name)):
            return
        value = static_attribute(cls, name)
        what = f"{cls.__qualname__}.{name}"
        if value is MISSING:
            if absent or name in _OF_CLASSES:
                self.watch(cls, name, what)
        elif isinstance(value, _SLOTS) or not (is_of_user(cls, name) or is_added(value)):
            return
        elif isinstance(value, (FunctionType, property, staticmethod)) or not hasattr(value, "__get__"):
            self.watch(cls, name, what)
        elif owner_of_class(type(value)) == purity.USER:
            raise self.refuse(
                f"{what} is a descriptor, a {type(value).__qualname__}, which runs code of its own"
            )
        else:
            self.reach(value, what)

    def _look_in_module(self, module: ModuleType, names: Iterable[str]) -> None:
        found = vars(module)
        public = [n for n, v in tuple(found.items()) if is_public(n, v)] if self.dynamic else ()
        for name in (*names, *public):
            if name in found or name in self.texts:
                self.watch(module, name, f"{module.__name__}.{name}")

    def _look_in_library(self, module: ModuleType, names: Iterable[str]) -> None:
        """In a pure library, look for what may not be pure after all, and for what other code may set there."""
        impure = purity.IMPURE_NUMPY if module.__name__ == "numpy" else ()
        for name in names:
            value = vars(module).get(name, MISSING)
            what = f"{module.__name__}.{name}"
            if name in impure:
                raise self.refuse(f"numpy.{name}() is mentioned, whose results may change")
            if isinstance(value, ABCMeta):
                self._abstract[value] = None
            if isinstance(value, (ModuleType, *_BUILTINS)):
                self.reach(value, what)
                self._keep(module, name, value, what)
            elif value is MISSING:
                if name in self.texts:
                    self.watch(module, name, what)
            elif isinstance(value, type):
                self._hold(self._look_in_class, value)
            elif is_added(value):
                self.watch(module, name, what)
            else:
                self._keep(module, name, value, what)
        if self.dynamic:
            for name, value in tuple(vars(module).items()):
                if is_added(value) and not name.startswith("_") and type(value).__module__ != "torch":
                    self.watch(module, name, f"{module.__name__}.{name}")

    def _keep(self, module: ModuleType, name: str, value: Any, what: str) -> None:
        """Watch that a module of torch keeps its function, and follow an object that holds options."""
        if purity.module_kind(module) != purity.TORCH:
            return
        if isinstance(value, (FunctionType, BuiltinFunctionType)):
            self._watched.setdefault((id(module), name), (module, name, unpatched(value)))
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            self.watch(module, name, what)

    def _look_in_object(self, value: Any, names: Iterable[str]) -> None:
        cls = type(value)
        every = self.dynamic or not is_read_by_user(cls)
        every = every or static_attribute(cls, "__getattr__") is not MISSING or has_own_look_up(cls)
        for name, part in attributes_of(value):
            if every or name in names:
                self.reach(part, f"{cls.__qualname__}.{name}")

    def _look_in_partial(self, what: str, value: Any, names: Iterable[str]) -> None:
        """What a functools.partial calls is watched, other attributes are not."""
        others = [n for n in names if n in value.__dict__ or (n in self.texts and not hasattr(value, n))]
        if others or (self.dynamic and value.__dict__):
            raise self.refuse(
                f"{what} is a functools.partial, of which {min(others, default='any name')} is read"
            )

    def _look_in_log(self, what: str, value: logging.Logger, names: Iterable[str]) -> None:
        """Code may name a logger on a path that does not run: a call of it is detected, its state may change."""
        if self.dynamic or not vars(value).keys().isdisjoint(names):
            raise self.refuse(f"{what} is a {type(value).__qualname__}, whose results may change")

    def _look_in_layer(self, module: nn.Module, names: Iterable[str]) -> None:
        for name, value in tuple(vars(module).items()):
            if name not in INTERNAL and (self.dynamic or name in names):
                self.reach(value, f"{type(module).__qualname__}.{name}")
        if "_modules" in names:
            self.count_children(module)

    def undo(self, elements: bool, containers: Container[int]) -> tuple[list[str], list[str]]:
        """Undo what the traced code wrote; see `Ledger.undo`.

        Args: elements: it may have written to elements of any container; containers: else to those of these ids.
        """
        return self.ledger.undo(self._written(elements, containers))

    def wrote(self, elements: bool, containers: Container[int]) -> list[str]:
        """What the traced code wrote by now and has not put back, in words. Args: as of `undo`."""
        written = self._written(elements, containers)
        if not (written.stored is None or written.stored or written.elements or containers):
            return []
        return self.ledger.undo(written, restore=False)[0]

    def _written(self, elements: bool, containers: Container[int]) -> Written:
        any_name = self.dynamic or not self.names.isdisjoint(_WRITE_ANY)
        stored = None if any_name else self.stored | self.texts
        elements = elements or any_name or not MUTATORS.isdisjoint(self.texts)
        alone = threading.active_count() == 1
        return Written(alone, self._read(), stored, elements, containers)

    def moved(self) -> list[str]:
        """What another thread wrote to after `undo`, in words."""
        nothing: frozenset[Any] = frozenset()
        return self.ledger.undo(Written(False, self._read(), nothing, False, nothing))[1]

    def _read(self) -> set[str] | None:
        """Names of attributes that the traced code reads, None for any."""
        return None if self.dynamic else self.names | self.texts

    # --- what was found ----------------------------------------------------------------------------------------------

    def outside(self, ran: Iterable[CodeType], asked: tuple[tuple[Any, str], ...] = ()) -> Outside:
        """What to watch that belongs to no module; of the functions in classes only those that ran.

        Args: asked: (object, attribute) that were read from objects with a look-up of their own.
        """
        wanted = Wanted(None if self.dynamic else frozenset(self.loaded), frozenset(self.texts), asked)
        watches = [(h, n, snapshot(v, wanted)) for h, n, v in self._needed(set(ran))]
        for holder in map(virtual, self._abstract if self.classes else ()):
            watches.append((holder, "registered", holder.registered))
        watches += [(look_up(cls), "function", None) for cls in self._layers]
        return Outside(tuple(watches), (), tuple(self._queries.values()))

    def _needed(self, ran: set[CodeType]) -> Iterator[tuple[Any, str, Any]]:
        for place, (holder, name, value) in self._watched.items():
            method = isinstance(holder, type) and isinstance(value, FunctionType)
            if not method or value.__code__ in ran or place in self._special:
                yield holder, name, value

    def reading(self, inlined: set[int]) -> Reading:
        """What was read of modules by name."""
        names = None if self.dynamic else frozenset(self.loaded)
        modules = tuple(m for m in self.modules if id(m) not in inlined)
        asked = {"counted": tuple(self.counted), "listed": tuple(self.listed), "classes": self.classes}
        return Reading(names, frozenset(self.texts), modules, tuple(self.parents), **asked)
