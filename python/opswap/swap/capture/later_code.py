# SPDX-License-Identifier: MIT
"""What is set, replaced or hooked below a rewritten forward after its capture, and what that code may write to.

The search of `unseen` is made again when code has changed; whether it has is seen by identities, in every call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter, is_not
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from ..runtime.guards import runs_other_code
from ..runtime.instance_forward import is_rewritten, overridden
from ..runtime.members import owner_of_class
from ..runtime.outside import Outside
from ..runtime.purity import USER
from ..runtime.state import INTERNAL, forward_of
from .reached import CONTAINERS, Reached, reference_to
from .unseen import (
    LISTS_OF_MODULES,
    Search,
    code_of,
    hooks_below,
    search_calls,
    set_on,
    what_may_change,
)

__all__ = ["LaterCode"]


class LaterCode:
    """Whether code of the modules that a rewritten forward calls may write to what it reads, if it came later.

    Noticed are: other modules and classes, functions and objects that are set on a user's module or class, functions
    that are set on a layer of torch, hooks, and what their code finds in variables, attributes and containers. torch
    numbers all hooks of the process: none is new if the next number is as it was.

    Args: called: the modules that the forward calls; names: the attributes that it reads, None for all.
    """

    _of_code: Reached | None = None
    _of_hooks: Reached | None = None

    def __init__(self, called: Iterable[nn.Module], names: frozenset[str] | None) -> None:
        self._called, self._names = tuple(called), names
        self._code: list[Any] | None = list(self._all_code())
        self._signs: _Signs | None = None
        self._number: int | None = None
        self._hooks: list[Callable[[], Any]] = []  # references, which are weak if they can be
        self._by_code = self._by_hooks = ""
        self._of_code = Reached(search_calls(self._called), self._below())
        self.runs_others = any(map(runs_other_code, self._called))

    def __deepcopy__(self, memo: dict[int, Any]) -> LaterCode:
        """A copy keeps the answer: hooks are shared with the original, and what they write to is not copied."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._called = copy.deepcopy(self._called, memo)
        copied._signs = copied._of_code = None
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which has other numbers and identities."""
        gone = ("_code", "_signs", "_of_code", "_of_hooks", "_number")
        return {**self.__dict__, **dict.fromkeys(gone), "_hooks": []}

    def conflict(self, module: nn.Module, readers: Iterable[nn.Module], outside: Outside) -> str:
        """See `guards.Later`."""
        number, signs = getattr(RemovableHandle, "next_id", None), self._signs
        if number is None or number != self._number or signs is None or not signs.hold() or not self._hold():
            self._look(module, (tuple(readers), self._names, outside))
            self._number = number
        return self._by_code or self._by_hooks

    def _hold(self) -> bool:
        code, hooks = self._of_code, self._of_hooks
        return code is not None and code.hold() and hooks is not None and hooks.hold()

    def _look(self, module: nn.Module, reading: tuple[Any, ...]) -> None:
        hooks, signs, code = hooks_below(module), _Signs(self._below()), list(self._all_code())
        known = [reference() for reference in self._hooks]
        if self._of_hooks is None or not self._of_hooks.hold() or not _same(hooks, known):
            found = Search(hooks)
            self._by_hooks, self._of_hooks = what_may_change(found, *reading), Reached(found)
        known = self._code or []
        if self._of_code is None or not self._of_code.hold() or not _same(code, known):
            found = search_calls(self._called)
            self._by_code, self._of_code = what_may_change(found, *reading), Reached(found, self._below())
        self._hooks, self._signs, self._code = list(map(reference_to, hooks)), signs, code
        self.runs_others = bool(hooks) or any(map(runs_other_code, self._called))

    def _below(self) -> list[nn.Module]:
        return list(dict.fromkeys(m for called in self._called for m in called.modules()))

    def _all_code(self) -> Iterator[Any]:
        """What is another object if and only if code below has changed."""
        below = self._below()
        for base in _classes_of_users(below):
            yield from code_of(vars(base)).values()
            yield from _containers(vars(base))
        for module in below:
            cls = type(module)
            yield from (cls, forward_of(cls), module if owner_of_class(cls) == USER else None)
            yield from (v if callable(v) else type(v) for v in set_on(module).values())
            yield from _containers({k: v for k, v in vars(module).items() if k not in INTERNAL})


class _Signs:
    """What stays as it is as long as no code comes to these modules; now and then it changes without. Quick to compare.

    The forward of a layer of torch is watched elsewhere, by its class. A generated forward is not held here: `called`
    counts its references.
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self._modules = modules
        self._classes = list(map(type, modules))
        self._dicts = list(map(_dict_of, modules))
        self._sizes = list(map(len, self._dicts))
        self._rewritten = [vars(m) for m in modules if is_rewritten(m) and not overridden(m)]
        users = _classes_of_users(modules)
        own = [m for m in modules if not set(users).isdisjoint(type(m).__mro__)]
        holders = {*own, *(m for m in modules if m._modules or isinstance(m, LISTS_OF_MODULES))}
        self._children = [(m._modules, list(m._modules.values())) for m in holders]
        self._types = [(vars(v), list(map(type, vars(v).values()))) for v in (*own, *users)]
        self._set = [(vars(m), k, v) for m in modules for k, v in set_on(m).items() if callable(v)]
        self._set += [(vars(cls), k, v) for cls in users for k, v in code_of(vars(cls)).items()]

    def hold(self) -> bool:
        """True if all is as it was."""
        modules, dicts = self._modules, self._dicts
        if list(map(type, modules)) != self._classes or list(map(len, dicts)) != self._sizes:
            return False
        if any(map(is_not, map(_dict_of, modules), dicts)):
            return False
        for held in self._rewritten:
            if held.get("forward") is not held.get("_opswap_forward"):
                return False
        for held, children in self._children:
            if len(held) != len(children) or any(map(is_not, held.values(), children)):
                return False
        for held, types in self._types:
            if list(map(type, held.values())) != types:
                return False
        return all([held.get(key) is value for held, key, value in self._set])  # noqa: C419, a list is faster


_dict_of = attrgetter("__dict__")


def _classes_of_users(modules: list[nn.Module]) -> list[type]:
    bases = dict.fromkeys(base for cls in dict.fromkeys(map(type, modules)) for base in cls.__mro__)
    return [base for base in bases if owner_of_class(base) == USER]


def _containers(attributes: Mapping[str, Any]) -> list[type]:
    """The types of those attributes that may hold code, though they are none."""
    return [type(v) for v in attributes.values() if type(v) in CONTAINERS]


def _same(values: list[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and not any(map(is_not, values, others))
