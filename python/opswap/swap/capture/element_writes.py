# SPDX-License-Identifier: MIT
"""Whether code may write to elements of a list, dict, set or deque, by its byte code.

It imports nothing of torch, so that its rules can be tested under every version of Python.
"""

from __future__ import annotations

import dis
import inspect
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

__all__ = ["MUTATORS", "ElementWrites", "element_writes", "writes_to_others"]

_METHODS = """
    __delitem__ __iadd__ __iand__ __imul__ __ior__ __isub__ __ixor__ __setitem__ add append appendleft clear
    difference_update discard extend extendleft insert intersection_update move_to_end pop popitem popleft remove
    reverse rotate setdefault sort subtract symmetric_difference_update update
"""
_FUNCTIONS = """
    delitem heapify heappop heappush heappushpop heapreplace iadd iand iconcat imul insort insort_left insort_right
    ior isub ixor methodcaller setitem shuffle
"""
# Methods that write. A call of one in C is seen while a trace runs, together with its object, but for `__name__`.
MUTATORS = frozenset(_METHODS.split())
# Functions in C that write to an argument, and methods whose calls are not seen.
_WRITERS = frozenset({*_FUNCTIONS.split(), "__init__", *(n for n in MUTATORS if n.startswith("__"))})
_SUBSCRIPTS = frozenset({"DELETE_SUBSCR", "STORE_SUBSCR"})
_KEYS = frozenset({"LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_SMALL_INT"})
_PAIRS = frozenset({"LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_LOAD_FAST"})
_MADE = frozenset({"BUILD_LIST", "BUILD_MAP", "BUILD_SET"})
_SKIPPED = frozenset({"CACHE", "COPY", "EXTENDED_ARG", "NOP", "SWAP"})


@dataclass(frozen=True)
class ElementWrites:
    """What one function may write to, without the functions inside it.

    anywhere: elements of any object. variables: elements of what these local variables hold.
    """

    anywhere: bool
    variables: frozenset[str]


@lru_cache(maxsize=4096)
def element_writes(code: CodeType) -> ElementWrites:
    """What one function may write to other than by a method call."""
    steps = [op for op in dis.get_instructions(code) if op.opname not in _SKIPPED]
    variables: set[str] = set()
    anywhere = False
    for i, op in enumerate(steps):
        if op.opname in _SUBSCRIPTS:
            base = _base(steps[:i])
            variables.update(filter(None, [base]))
            anywhere = anywhere or base is None
        elif op.opname == "STORE_SLICE":
            anywhere = True
        elif op.opname.startswith("INPLACE_") or (op.opname == "BINARY_OP" and op.argrepr.endswith("=")):
            target = _target(steps[i + 1 : i + 2])
            variables.update(filter(None, [target]))
            anywhere = anywhere or target is None
        elif op.opname in ("LOAD_ATTR", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_NAME", "LOAD_SUPER_ATTR"):
            anywhere = anywhere or op.argval in _WRITERS or (op.argval in MUTATORS and _is_value(op))
        elif op.opname == "LOAD_CONST":  # of getattr
            anywhere = anywhere or (isinstance(op.argval, str) and op.argval in MUTATORS)
    return ElementWrites(anywhere, frozenset(variables))


@lru_cache(maxsize=4096)
def writes_to_others(code: CodeType) -> bool:
    """True if one function may write to elements of a container that it has not made itself."""
    found, own = element_writes(code), _made_here(code)
    if found.anywhere or not found.variables <= own:
        return True
    before = None
    for op in dis.get_instructions(code):
        local = before is not None and before.opname.startswith("LOAD_FAST") and before.argval in own
        if op.opname in ("LOAD_ATTR", "LOAD_METHOD") and op.argval in MUTATORS and not local:
            return True
        before = op
    return False


def _made_here(code: CodeType) -> set[str]:
    """The local variables that hold only lists, dicts and sets that the function makes."""
    made: set[str] = set()
    starred = sum(bool(code.co_flags & f) for f in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    others = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred])
    before = None
    for op in dis.get_instructions(code):
        if op.opname.startswith("STORE_FAST"):
            new = op.opname == "STORE_FAST" and before is not None and before.opname in _MADE
            (made if new else others).update((op.argval,) if isinstance(op.argval, str) else op.argval)
        if op.opname not in _SKIPPED:
            before = op
    return made - others


def _base(before: list[dis.Instruction]) -> str | None:
    """The local variable of `variable[key] = ...`, if the key is a constant or a variable; else None."""
    if not before:
        return None
    *others, key = before
    if key.opname in _PAIRS:
        return key.argval[0]
    if key.opname not in _KEYS or not others:
        return None
    last = others[-1]
    if last.opname in _PAIRS:
        return last.argval[1]
    if last.opname == "STORE_FAST_LOAD_FAST":
        return last.argval[1]
    return last.argval if last.opname in ("LOAD_FAST", "LOAD_FAST_BORROW") else None


def _target(behind: list[dis.Instruction]) -> str | None:
    """The local variable that gets the result."""
    for op in behind:
        if op.opname == "STORE_FAST":
            return op.argval
        if op.opname in ("STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"):
            return op.argval[0]
    return None


def _is_value(op: dis.Instruction) -> bool:
    """True if a method is not called immediately, so that C code may call it."""
    return op.opname == "LOAD_ATTR" and "NULL|self" not in op.argrepr
