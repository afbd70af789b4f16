# SPDX-License-Identifier: MIT
"""Which functions called `__getattribute__` read nothing but their own object, as those of configurations do.

It imports nothing of torch, so that its rules can be tested under every version of Python.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType

from .identity import Step, steps_of

__all__ = ["is_look_up"]

NAME = "__getattribute__"
_INSIDE = "__dict__"
_SKIPPED = frozenset({"COPY_FREE_VARS", "KW_NAMES", "MAKE_CELL", "PRECALL", "PUSH_NULL"})
_CALLS = frozenset({"CALL", "CALL_FUNCTION", "CALL_METHOD"})
_WRITES = ("DELETE_", "STORE_")


@lru_cache(maxsize=1024)
def is_look_up(code: CodeType) -> bool:
    """True for `def __getattribute__(self, name)` that looks up names, and `__dict__`, by `super()` or `object` alone.

    Every attribute that it reads in this way is one of self. What it does with the answers does not matter.
    """
    if code.co_name != NAME or code.co_argcount != 2 or code.co_kwonlyargcount or code.co_flags & 12:
        return False
    if any(isinstance(c, CodeType) for c in code.co_consts):
        return False
    me = code.co_varnames[0]
    steps = [s for s in steps_of(code) if s.opname not in _SKIPPED]
    if any(s.opname.startswith(_WRITES) and s.argval == me for s in steps):
        return False
    for i, step in enumerate(steps):
        if step.argval == NAME and not _asks_self(steps, i, me):
            return False
        if step.argval == _INSIDE and not (step.opname == "LOAD_CONST" and _is_its_name(steps, i, me)):
            return False
    return True


def _asks_self(steps: list[Step], i: int, me: str) -> bool:
    """True for super().__getattribute__ and object.__getattribute__(self, ...)."""
    if steps[i].opname in ("LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"):
        arguments = int(steps[i].arg or 0) & 2
        return i > 2 and not arguments and _loads(steps[i - 1], me) and _is_global(steps[i - 3], "super")
    if steps[i].opname not in ("LOAD_ATTR", "LOAD_METHOD") or i < 1:
        return False
    if steps[i - 1].opname in _CALLS:
        return i > 1 and not _arguments(steps[i - 1]) and _is_global(steps[i - 2], "super")
    return _is_global(steps[i - 1], "object") and i + 1 < len(steps) and _loads(steps[i + 1], me)


def _is_its_name(steps: list[Step], i: int, me: str) -> bool:
    """True if the constant is what such a look-up is called with, and the call follows immediately."""
    asked = i - 2 if i > 1 and _loads(steps[i - 1], me) and steps[i - 2].argval == NAME else i - 1
    return asked >= 0 and steps[asked].argval == NAME and steps[i + 1].opname in _CALLS


def _loads(step: Step, name: str) -> bool:
    return step.opname.startswith("LOAD_FAST") and step.argval == name


def _is_global(step: Step, name: str) -> bool:
    return step.opname == "LOAD_GLOBAL" and step.argval == name


def _arguments(step: Step) -> int:
    return int(step.arg or 0)
