# SPDX-License-Identifier: MIT
"""Comparisons by identity in code, which a trace cannot see: a proxy is never None, and never its own input.

It imports nothing of torch, so that its rules can be tested under every version of Python.
"""

from __future__ import annotations

import dis
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple

__all__ = ["Chain", "Identities", "Step", "identities", "is_compared", "steps_of"]

_NONE = ("IF_NONE", "IF_NOT_NONE")
_FIXED = frozenset({"LOAD_CONST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CALLS = frozenset(
    {"BINARY_OP", "BINARY_SUBSCR", "CALL", "CALL_FUNCTION", "CALL_KW", "KW_NAMES", "PRECALL", "PUSH_NULL"}
)
_STORES = frozenset({"DELETE_DEREF", "DELETE_FAST", "STORE_DEREF", "STORE_FAST", "STORE_FAST_MAYBE_NULL"})
_ENDS_CALL = frozenset({"CALL", "CALL_FUNCTION", "PRECALL"})
_OVER = frozenset({"enumerate", "list", "reversed", "tuple"})
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME"})

_PAIR = re.compile(r"((?:LOAD|STORE)_FAST(?:_BORROW)?)_((?:LOAD|STORE)_FAST(?:_BORROW)?)")


Chain = tuple[Any, ...]


@dataclass(frozen=True)
class Identities:
    """The comparisons by identity in one function, without those of the functions inside it.

    asks_none: a result, or a variable that the function writes, is compared with None. arguments: those compared with
    None. others: those compared with anything else. attributes: offsets of the instructions that fetch a compared
    attribute. offsets: of all instructions. unknown: two values are compared that only the running code knows.
    chains: for each such comparison that is clear if a side is a module: both sides, each as the name of a variable and
    what is fetched from it, as self.layers[-1] is ("self", ".layers", -1); "*" is for each element in a loop.
    """

    asks_none: bool = False
    arguments: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    attributes: frozenset[int] = frozenset()
    offsets: tuple[int, ...] = ()
    unknown: bool = False
    chains: tuple[tuple[Chain, ...], ...] = ()


class Step(NamedTuple):
    """An instruction; one of 3.13 and later that works on two variables is two steps."""

    opname: str
    argval: Any
    offset: int
    effect: int
    target: bool
    arg: int | None = None


def steps_of(code: CodeType) -> list[Step]:
    """The instructions of one function without those that do nothing."""
    steps = []
    for op in dis.get_instructions(code):
        pair = _PAIR.fullmatch(op.opname)
        if op.opname in _SKIPPED:
            continue
        if pair is not None and isinstance(op.argval, tuple):
            for name, variable in zip(pair.groups(), op.argval, strict=True):
                effect = 1 if name.startswith("LOAD") else -1
                steps.append(Step(name, variable, op.offset, effect, op.is_jump_target))
            continue
        argument = op.arg if op.opcode >= dis.HAVE_ARGUMENT else None
        effect = dis.stack_effect(op.opcode, argument, jump=False)
        value = op.argrepr if op.opname == "BINARY_OP" else op.argval
        steps.append(Step(op.opname, value, op.offset, effect, op.is_jump_target, op.arg))
    return steps


@lru_cache(maxsize=4096)
def identities(code: CodeType) -> Identities:
    """What one function compares by identity."""
    steps = steps_of(code)
    tests = [(i, _operands(steps, i)) for i, op in enumerate(steps) if _is_test(op)]
    if not tests:
        return Identities()
    written = {op.argval for op in steps if op.opname.startswith(("STORE_", "DELETE_"))}
    asks_none = unknown = False
    arguments, others, attributes = set(), set(), set()
    chains: list[tuple[Chain, ...]] = []
    for _, operands in tests:
        kinds = [_kind(steps, i, code, written) for i in operands]
        none = any(i is not None and _is_none(steps[i]) for i in operands) or len(operands) == 1
        attributes.update(steps[i].offset for i, k in zip(operands, kinds, strict=True) if k == "attribute")
        names = {k[1:] for k in kinds if k.startswith("=")}
        if none:
            asks_none = asks_none or "unknown" in kinds
            arguments |= names
        else:
            others |= names
            if "unknown" in kinds or kinds == ["attribute"] * 2:
                sides = tuple(_chain(steps, i, code) or _element(steps, i, code) for i in operands)
                unknown = unknown or None in sides
                chains.append(sides)
    found = frozenset(arguments), frozenset(others), frozenset(attributes)
    sides = () if unknown else tuple(chains)
    return Identities(asks_none, *found, tuple(op.offset for op in steps), unknown, sides)


def is_compared(code: CodeType, last: int) -> bool:
    """True if the instruction at work, a frame's f_lasti, fetches an attribute that is compared by identity."""
    found = identities(code)
    if not found.attributes:
        return False
    place = bisect_right(found.offsets, last) - 1
    return place >= 0 and found.offsets[place] in found.attributes


def _is_test(op: Step) -> bool:
    return op.opname == "IS_OP" or op.opname.endswith(_NONE)


def _is_none(op: Step) -> bool:
    return op.opname == "LOAD_CONST" and op.argval is None


def _operands(steps: list[Step], test: int) -> list[int | None]:
    """The instructions that make what is compared: one for a jump by None, else two; None if it is unclear."""
    # Where several paths meet, a value may have been made on each of them.
    last = test - 1 if test and not steps[test].target and "JUMP" not in steps[test - 1].opname else None
    if steps[test].opname != "IS_OP":
        return [last]
    if last is None:
        return [None, None]
    start = _start(steps, last)
    return [start - 1 if start and not steps[start].target else None, last]


def _start(steps: list[Step], last: int) -> int | None:
    """The first instruction of the expression that ends with this one; None if it is unclear, or the very first."""
    wanted = 1
    for place in range(last, 0, -1):
        op = steps[place]
        if "JUMP" in op.opname or (op.target and place != last):
            return None
        wanted -= op.effect
        if wanted <= 0:
            return place if wanted == 0 else None
    return None


def _chain(steps: list[Step], place: int | None, code: CodeType) -> Chain | None:
    """What is fetched from a variable by attributes and constant keys alone; None for any other expression.

    The variable is one that the function never writes; a variable that it writes once represents the value written.
    """
    fetched: list[Any] = []
    while place is not None and place >= 0:
        op = steps[place]
        if op.opname in _ATTRIBUTES:
            fetched.append(f".{op.argval}")
        elif op.opname == "BINARY_SUBSCR" or (op.opname == "BINARY_OP" and op.argval == "[]"):
            place -= 1
            key = steps[place]
            if key.opname not in ("LOAD_CONST", "LOAD_SMALL_INT") or type(key.argval) not in (int, str):
                return None
            fetched.append(key.argval)
        elif op.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            stores = [i for i, s in enumerate(steps) if s.argval == op.argval and s.opname in _STORES]
            if not stores:
                return (op.argval, *reversed(fetched)) if fetched else None
            if len(stores) > 1 or not 0 < stores[0] < place or op.argval in _kept(code):
                return None
            place = stores[0]
        else:
            return None
        if op.target:
            return None
        place -= 1
    return None


def _element(steps: list[Step], place: int | None, code: CodeType) -> Chain | None:
    """The chain over which the loop goes whose variable is read here, and "*"; None for any other expression."""
    name = None if place is None else steps[place].argval
    stores = [i for i, s in enumerate(steps) if s.argval == name and s.opname in _STORES]
    if place is None or not steps[place].opname.startswith(("LOAD_FAST", "LOAD_DEREF")) or len(stores) != 1:
        return None
    start = stores[0] - 1
    while start > 0 and steps[start].opname in (*_STORES, "UNPACK_SEQUENCE"):
        start -= 1
    if start < 2 or steps[start].opname != "FOR_ITER" or name in _kept(code):
        return None
    if steps[start - 1].opname != "GET_ITER":
        return None
    last = start - 2
    while last > 0 and steps[last].opname in _ENDS_CALL:
        last -= 1
    first = last
    while first > 0 and (steps[first].opname in _ATTRIBUTES or steps[first].opname.startswith("LOAD_FAST")):
        first -= 1
    calls = sum(op.opname.startswith("CALL") for op in steps[last + 1 : start - 1])
    builtin = any(steps[i].opname == "LOAD_GLOBAL" and steps[i].argval in _OVER for i in (first, first - 1))
    found = _chain(steps, last, code) if calls == builtin else None
    return None if found is None else (*found, "*")


def _kept(code: CodeType) -> set[str]:
    """The variables that a function is given: its arguments, and those of the functions around it."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return {*code.co_varnames[:count], *code.co_freevars}


def _kind(steps: list[Step], place: int | None, code: CodeType, written: set[str]) -> str:
    """How an operand is made: "fixed", "attribute", "unknown", or "=name" of an argument that keeps its value."""
    if place is None:
        return "unknown"
    op = steps[place]
    if op.opname in _FIXED:
        return "fixed"
    if op.opname in _ATTRIBUTES:
        root = place
        while root > 0 and steps[root].opname in _ATTRIBUTES:
            root -= 1
        return "fixed" if steps[root].opname in ("LOAD_GLOBAL", "LOAD_NAME") else "attribute"
    if op.opname.startswith(("CALL", "BINARY_SUBSCR", "BINARY_OP")):
        first = place if place == 0 else _start(steps, place)
        inside = steps[place if first is None else first : place]
        if inside and all(
            o.opname in _FIXED or o.opname in _ATTRIBUTES or o.opname in _CALLS for o in inside
        ):
            return "fixed"  # of constants and global variables alone
    if (
        op.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF"))
        and op.argval in _kept(code) - written
    ):
        return f"={op.argval}"
    return "unknown"
