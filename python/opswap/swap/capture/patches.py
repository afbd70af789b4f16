# SPDX-License-Identifier: MIT
"""What torch.fx replaces during a trace, without an effect on other threads.

torch.fx patches torch.nn.Module for the whole process and puts back what it found. Where two threads overlap, and the
one that came first also leaves first, the other one would permanently restore the patch of a trace that has ended.
Compiling and exporting trace too. The patches here work in their own thread alone, are restored only if no other code
has patched over them, and pass every call on afterwards.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from opswap._torch import fx_trace

__all__ = ["Patches", "reading_flags", "trace_with"]

_MISSING = object()
_METHODS = threading.RLock()  # held while a method of a class is replaced or put back


class Patches:
    """Has the methods of torch.fx's own patcher, for one trace in one thread.

    disturbed: another thread patched or restored a method of a class meanwhile: the trace may lack calls.
    """

    def __init__(self) -> None:
        self.disturbed = False
        self._thread = threading.get_ident()
        self._active = True
        self._taken_back = False
        self._visited: set[int] = set()
        self._names: list[tuple[dict[str, Any], str, Any, Any]] = []
        self._wanted: dict[str, list[tuple[dict[str, Any], Any]]] = {}  # by the names of the variables
        self._methods: list[tuple[type, str, Any, Any]] = []

    def visit_once(self, thing: Any) -> bool:
        """True with the first call for an object."""
        new = id(thing) not in self._visited
        self._visited.add(id(thing))
        return new

    def patch(
        self, scope: dict[str, Any], name: str, new: Callable[..., Any], deduplicate: bool = True
    ) -> None:
        """Replace a global variable when code that names it is reached: other threads see the replacement, by its
        identity.

        `new` looks for proxies among its arguments, which other threads have not.
        """
        self._wanted.setdefault(name, []).append((scope, new))

    def meet(self, code: CodeType) -> None:
        """Replace the variables that this code may read: before it runs."""
        for name in (*code.co_names, *[c for c in code.co_consts if type(c) is str]):
            for scope, new in self._wanted.pop(name, ()):
                self._names.append((scope, name, scope.get(name, _MISSING), new))
                scope[name] = new

    def patch_method(self, cls: type, name: str, new: Callable[..., Any], deduplicate: bool = True) -> None:
        """Replace a method of a class, in this thread and until `close`."""
        with _METHODS:
            old = getattr(cls, name)
            while getattr(getattr(old, "opswap_patches", None), "closed", False):
                old = old.__wrapped__  # other code has restored a patch that had ended

            @wraps(old)
            def here(*args: Any, **kwargs: Any) -> Any:
                if torch.compiler.is_dynamo_compiling():  # another thread's code
                    return old(*args, **kwargs)
                mine = self._active and threading.get_ident() == self._thread
                if self._taken_back:
                    _remove(cls, name, here, old)
                return new(*args, **kwargs) if mine else old(*args, **kwargs)

            here.opswap_patches = self
            self._methods.append((cls, name, old, here))
            setattr(cls, name, here)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return not self._active

    def close(self) -> None:
        """Restore everything, except what other code has patched meanwhile."""
        self._active = False
        try:
            self._take_back()
        except BaseException:  # an interrupt
            self._take_back()
            raise

    def _take_back(self) -> None:
        for scope, name, old, new in reversed(self._names):
            if scope.get(name) is new:
                if old is _MISSING:
                    del scope[name]
                else:
                    scope[name] = old
        with _METHODS:
            for cls, name, old, here in reversed(self._methods):
                if vars(cls).get(name) is here:
                    setattr(cls, name, old)
                else:
                    self.disturbed = True
            self._taken_back = True


def _remove(cls: type, name: str, here: Callable[..., Any], old: Callable[..., Any]) -> None:
    """Restore a method of a trace that has ended, which an overlapping trace has put back.

    A later call does so if another thread replaces methods just now: between the look and the write, the class would
    lose what that thread puts there.
    """
    if _METHODS.acquire(blocking=False):
        try:
            if vars(cls).get(name) is here:
                setattr(cls, name, old)
        finally:
            _METHODS.release()


class _Flag:
    """`training` of modules in place of the entry of the instance, which it writes to. read: told of each read."""

    def __init__(self, read: Callable[[nn.Module, FrameType], None]) -> None:
        self._read = read

    def __get__(self, module: nn.Module | None, cls: type) -> Any:
        if module is not None and not torch.compiler.is_dynamo_compiling():  # another thread's code
            self._read(module, sys._getframe(1))
        if module is None or "training" not in module.__dict__:  # Python asks `__getattr__`
            raise AttributeError(f"{cls.__name__!r} has no attribute 'training'")
        return module.__dict__["training"]

    def __set__(self, module: nn.Module, value: Any) -> None:
        module.__dict__["training"] = value

    def __delete__(self, module: nn.Module) -> None:
        del module.__dict__["training"]


@contextmanager
def reading_flags(read: Callable[[nn.Module, FrameType], None]) -> Iterator[None]:
    """Tell of each read of `training` in this context: of the module, and of the frame that reads it.

    Other threads' too: a capture runs in one thread at a time.
    """
    flag = _Flag(read)
    nn.Module.training = flag
    try:
        yield
    finally:
        if vars(nn.Module).get("training") is flag:
            del nn.Module.training


def trace_with(patches: Patches, tracer: Any, root: Any) -> Any:
    """What torch.fx.Tracer.trace(tracer, root) returns, traced with these patches."""

    @contextmanager
    def new_patcher() -> Iterator[Patches]:
        try:
            yield patches
        finally:
            patches.close()

    try:
        return fx_trace(new_patcher)(tracer, root)
    finally:
        if not patches.closed:  # interrupted on the way out
            patches.close()
