# SPDX-License-Identifier: MIT
"""What a capture relied on outside of the model's modules: globals, closures, classes, torch's own state."""

from __future__ import annotations

import hashlib
import importlib
import pickle
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from .members import MISSING
from .patched import unpatched
from .purity import LAYERS, TORCH, owner_of
from .snapshot import is_as
from .virtual import LookUp, Virtual, look_up, virtual

__all__ = ["Outside", "Scope", "all_unchanged", "is_unchanged", "join", "read"]


# What represents a class as a holder, by the numbers that pickles have for it.
_OF_CLASSES: dict[int, tuple[type, Callable[[Any], Any]]] = {-2: (Virtual, virtual), -3: (LookUp, look_up)}


class Scope:
    """The global variables of code that no module has, as attributes."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self.__dict__ = variables


@dataclass(frozen=True)
class Outside:
    """Values that do not belong to a module; they are the process's, so that copies of a model share them.

    watches: (holder, name, snapshot): an attribute of a Python module, class, function or cell.
    shadows: (holder, names): builtins that the global variables of the holder do not hide.
    queries: (function, answer): the state of torch that code reads. lost: some of it could not be pickled.
    """

    watches: tuple[tuple[Any, str, Any], ...] = ()
    shadows: tuple[tuple[Any, tuple[str, ...]], ...] = ()
    queries: tuple[tuple[Callable[[], Any], Any], ...] = ()
    lost: bool = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Outside:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """By names; if a name gives something else when it is loaded, `is_unchanged` is False from then on."""
        try:
            packed = _pack(self)
            pickle.dumps(packed)
        except Exception:
            return Outside, ((), (), (), True)
        return _unpack, packed


def join(parts: Iterable[Outside]) -> Outside:
    """All that any of the parts watches; one of them is lost if the same was seen with two values.

    Of one object, two parts may have read different attributes.
    """
    watches: dict[tuple[int, str], list[tuple[Any, str, Any]]] = {}
    shadows: dict[int, tuple[Any, dict[str, None]]] = {}
    queries: dict[int, tuple[Callable[[], Any], Any]] = {}
    lost = False
    for part in parts:
        lost = lost or part.lost
        for holder, name, then in part.watches:
            known = watches.setdefault((id(holder), name), [])
            if not any(_is_equal(then, other) for *_, other in known):
                known.append((holder, name, then))
        for holder, names in part.shadows:
            shadows.setdefault(id(holder), (holder, {}))[1].update(dict.fromkeys(names))
        for function, answer in part.queries:
            lost = lost or queries.setdefault(id(function), (function, answer))[1] is not answer
    hidden = tuple((holder, tuple(names)) for holder, names in shadows.values())
    return Outside(
        tuple(w for found in watches.values() for w in found), hidden, tuple(queries.values()), lost
    )


def _is_equal(a: Any, b: Any) -> bool:
    """True for snapshots that are surely the same."""
    try:
        return a is b or (type(a) is type(b) and bool(a == b))
    except Exception:  # they hold arrays or tensors, or objects of the user
        return False


def read(holder: Any, name: str) -> Any:
    """An attribute of a holder, without what a trace has put in its place; MISSING if it has none."""
    try:
        return unpatched(getattr(holder, name, MISSING))
    except ValueError:  # an empty cell
        return MISSING


def is_unchanged(outside: Outside) -> bool:
    """True if everything outside is as it was; torch.compile traces through it."""
    return not outside.lost and all_unchanged(outside.watches) and _answers_are_unchanged(outside)


def all_unchanged(watches: Iterable[tuple[Any, str, Any]]) -> bool:
    """The same of attributes alone."""
    for holder, name, then in watches:
        now = getattr(holder, name, MISSING)
        if now is not then and not is_as(now, then) and not _is_patch_of(now, then):
            return False
    return True


def _answers_are_unchanged(outside: Outside) -> bool:
    for holder, names in outside.shadows:
        for name in names:
            if name in holder.__dict__:
                return False
    for function, answer in outside.queries:  # noqa: SIM110
        if function() is not answer:
            return False
    return True


def _is_patch_of(now: Any, then: Any) -> bool:
    """True if another thread traces, and its trace has replaced `then` by `now` meanwhile."""
    if torch.compiler.is_compiling():
        return False
    original = unpatched(now)
    return original is not now and (original is then or is_as(original, then))


# --- pickling --------------------------------------------------------------------------------------------------------


def _pack(outside: Outside) -> tuple[Any, ...]:
    places: dict[int, tuple[str, str, int]] = {}
    for holder, name, then in outside.watches:
        if isinstance(then, FunctionType) and isinstance(holder, (ModuleType, type)):
            inside = isinstance(holder, type)
            where = holder.__module__ if inside else holder.__name__
            places[id(then)] = where, f"{holder.__qualname__}.{name}" if inside else name, -1
    functions = [v for h, _, t in outside.watches for v in (h, t) if isinstance(v, FunctionType)]
    for function in functions:
        module, name, _ = _address(function, places)
        for i, cell in enumerate(function.__closure__ or ()):
            places[id(cell)] = module, name, i
    watches = tuple((_address(h, places), n, _describe(t)) for h, n, t in outside.watches)
    shadows = tuple((_address(h, places), names) for h, names in outside.shadows)
    return watches, shadows, outside.queries, outside.lost


def _unpack(watches: Any, shadows: Any, queries: Any, lost: bool) -> Outside:
    try:
        found = []
        for address, name, described in watches:
            holder = _find(address)
            now = read(holder, name)
            if _describe(now) != described and not is_as(now, described[1]):
                return Outside(lost=True)
            found.append((holder, name, now if described[0] == "object" else described[1]))
        hidden = tuple((_find(address), names) for address, names in shadows)
    except Exception:
        return Outside(lost=True)
    return Outside(tuple(found), hidden, queries, lost)


def _address(holder: Any, places: dict[int, tuple[str, str, int]]) -> tuple[str, str, int]:
    """Where a holder is found: module, qualified name, and the number of the cell, -1, or one of _OF_CLASSES."""
    if isinstance(holder, ModuleType):
        found = holder.__name__, "", -1
    elif isinstance(holder, (Virtual, LookUp)):
        number = next(n for n, (kind, _) in _OF_CLASSES.items() if isinstance(holder, kind))
        found = holder.cls.__module__, holder.cls.__qualname__, number
    else:
        found = places.get(id(holder)) or (holder.__module__, holder.__qualname__, -1)
    if _find(found) is not holder:
        raise LookupError(found)
    return found


def _find(address: tuple[str, str, int]) -> Any:
    module, name, cell = address
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    if cell in _OF_CLASSES:
        return _OF_CLASSES[cell][1](found)
    return found if cell < 0 else found.__closure__[cell]


def _describe(then: Any) -> tuple[str, Any]:
    """("value", snapshot) of a value, ("object", text) of what is compared by identity."""
    if isinstance(then, ModuleType):
        return "object", f"module {then.__name__}"
    if isinstance(then, FunctionType):
        if owner_of(then) in (LAYERS, TORCH):  # of any version
            return "object", f"function {then.__module__}.{then.__qualname__}"
        return "object", f"function {then.__qualname__} {_digest(then.__code__)}"
    if isinstance(then, CodeType):
        return "object", f"code {_digest(then)}"
    if isinstance(then, type) and then is not MISSING:
        return "object", f"class {then.__module__}.{then.__qualname__}"
    if isinstance(then, property):
        return "object", f"property {_describe(then.fget)}"
    if callable(then) and hasattr(then, "__qualname__"):
        return "object", f"callable {getattr(then, '__module__', '')}.{then.__qualname__}"
    return "value", then


def _digest(code: CodeType) -> str:
    """Of what the code does; lines and files do not matter."""
    inner = [_digest(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    parts = (code.co_code, inner, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return hashlib.sha256(repr(parts).encode()).hexdigest()
