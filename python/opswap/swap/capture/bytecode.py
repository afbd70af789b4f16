# SPDX-License-Identifier: MIT
"""What the byte code of a function shows: which names it reads and writes, and why a trace of it would not be faithful.

It imports nothing of torch, so that its rules can be tested under every version of Python.
"""

from __future__ import annotations

import dis
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from types import CodeType
from typing import Any

from .element_writes import writes_to_others
from .look_up import is_look_up

__all__ = [
    "Reads",
    "Stores",
    "class_reads",
    "looks_inside",
    "place",
    "reads",
    "resolved",
    "stores",
    "unfaithful",
]

# Answers that a trace would give once and for all: about Python itself, or about state of torch's threads.
_ANSWERS = """
    callable is_ is_autocast_enabled is_grad_enabled is_inference_mode_enabled is_not is_tensor issubclass
    type
"""
_BAKED = frozenset(_ANSWERS.split())
_CATCHES = frozenset({"CHECK_EG_MATCH", "CHECK_EXC_MATCH", "JUMP_IF_NOT_EXC_MATCH"})
_WITH = frozenset({"BEFORE_ASYNC_WITH", "BEFORE_WITH", "SETUP_ASYNC_WITH", "SETUP_WITH"})
_ATTRIBUTES = frozenset(
    {"DELETE_ATTR", "IMPORT_FROM", "LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR"}
)
_STORES = frozenset({"DELETE_ATTR", "STORE_ATTR"})
_GLOBALS = frozenset({"LOAD_FROM_DICT_OR_GLOBALS", "LOAD_GLOBAL", "LOAD_NAME"})
_CALLS = frozenset({"CALL", "CALL_FUNCTION", "PRECALL"})
_NO_OPERATION = frozenset({"CACHE", "KW_NAMES", "NOP", "PRECALL", "PUSH_NULL"})
# Read the type of a value past all that a stand-in for a tensor or a size could answer.
_PATTERNS = frozenset({"MATCH_CLASS", "MATCH_MAPPING", "MATCH_SEQUENCE"})
_WRITES = frozenset({"DELETE_GLOBAL", "STORE_GLOBAL"})
# Names by which code reads attributes that its byte code does not name.
_LOOK_UPS = frozenset({"attrgetter", "format", "format_map", "methodcaller", "__getattribute__"})
_INSIDE = frozenset({"__dict__", "__hash__"})
_NAMESPACES = frozenset({"dir", "globals", "locals", "vars"})
# What holds attributes, which code may write to as to a dict.
_HOLD_ANY = frozenset({"__dict__", "_buffers", "_modules", "_parameters", "globals", "vars"})
# Names by which code writes attributes that its byte code does not name, and methods of modules that add them.
_SETTERS = frozenset({"delattr", "setattr"})
_WRITE_ANY = frozenset({"__delattr__", "__setattr__", "set_submodule"})
_RUN_ANY = frozenset({"eval", "exec"})
_FORMATS = frozenset({"BUILD_STRING", "FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC"})
_REGISTER = frozenset({"add_module", "register_buffer", "register_module", "register_parameter"})
_MANY = 32_768  # functions: a model of a library that registers its parts may reach more than 4,096


@dataclass(frozen=True)
class Reads:
    """The names in one function, without those of the functions inside it.

    names: global variables, or builtins. attributes: of any object, read or written; `stored` are those that are
    written, a variable of an enclosing function as "cell_contents", `unread` those that are only written.
    imports: (name, level) of import statements. texts: attributes that are looked up by a constant text. indirect: the
    attributes of its first argument that have the name of another one, as in `getattr(self, self.norm_name)`.
    dynamic: attributes are looked up by other texts; those that an object's own look-up reads from the object itself
    are not among them.
    """

    names: tuple[str, ...]
    attributes: frozenset[str]
    stored: frozenset[str]
    unread: frozenset[str]
    imports: tuple[tuple[str, int], ...]
    texts: frozenset[str]
    indirect: frozenset[str]
    dynamic: bool


@dataclass(frozen=True)
class Stores:
    """What one function may write to, without the functions inside it.

    names: attributes of any object, and global variables; `of_others` are those not of its first argument alone.
    of_parts: (x, name) of the attributes that are written by `self.x.name = ...`, with self the first argument, which
    are not among the names. variables: those of enclosing functions. anything: attributes whose names are not known.
    """

    names: frozenset[str]
    of_others: frozenset[str]
    of_parts: frozenset[tuple[str, str]]
    variables: frozenset[str]
    anything: bool


def place(code: CodeType) -> str:
    """The function as messages name it: its name, file and line."""
    return f"{code.co_name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


@lru_cache(maxsize=_MANY)
def reads(code: CodeType) -> Reads:
    """What one function reads and writes by name."""
    names: dict[str, None] = {}
    attributes, stored, loaded, texts, indirect, imports = set(), set(), set(), set(), set(), []
    dynamic = False
    asked = _LOOK_UPS - {"__getattribute__"} if is_look_up(code) else _LOOK_UPS
    steps = list(dis.get_instructions(code))
    for i, op in enumerate(steps):
        if op.opname in _GLOBALS:
            names[op.argval] = None
            if op.argval in ("getattr", "hasattr"):
                text, attribute = _looked_up(steps, i), _looked_up_by(steps, i, code)
                dynamic = dynamic or (text is None and attribute is None)
                texts.update(filter(None, [text]))
                indirect.update(filter(None, [attribute]))
        elif op.opname in _ATTRIBUTES:
            attributes.add(op.argval)
            dynamic = dynamic or (op.argval in asked and not (i and _formats(steps[i - 1 : i + 1])))
            (stored if op.opname in _STORES else loaded).add(op.argval)
        elif op.opname in ("DELETE_DEREF", "STORE_DEREF") and op.argval in code.co_freevars:
            stored.add("cell_contents")
        elif op.opname == "IMPORT_NAME":
            level = steps[i - 2].argval
            imports.append((op.argval, level if isinstance(level, int) else 0))
        dynamic = dynamic or op.opname == "MATCH_CLASS"
    dynamic = dynamic or not asked.isdisjoint(names)
    sets = map(frozenset, (attributes, stored, attributes - loaded))
    return Reads(tuple(names), *sets, tuple(imports), frozenset(texts), frozenset(indirect), dynamic)


def _formats(steps: Sequence[dis.Instruction]) -> bool:
    """True for "...".format, if no attribute and no element is named in the text."""
    text, attribute = (step.argval for step in steps)
    if attribute != "format" or steps[0].opname != "LOAD_CONST" or not isinstance(text, str):
        return False
    try:
        fields = [(name, spec) for _, name, spec, _ in Formatter().parse(text) if name is not None]
    except ValueError:  # the text is not a format
        return False
    return all(
        (not name or name.isidentifier() or name.isdigit()) and "{" not in (spec or "")
        for name, spec in fields
    )


@lru_cache(maxsize=_MANY)
def stores(code: CodeType) -> Stores:
    """What one function may write to by name."""
    names: set[str] = set()
    of_others: set[str] = set()
    of_parts: set[tuple[str, str]] = set()
    variables: set[str] = set()
    steps = list(dis.get_instructions(code))
    fixed = not _changes_first(steps, code)
    anything = False
    for i, op in enumerate(steps):
        if (
            fixed
            and op.opname in _STORES
            and steps[i - 1].opname == "LOAD_ATTR"
            and _loads_first(steps[i - 2], code)
        ):
            of_parts.add((steps[i - 1].argval, op.argval))
        elif op.opname in _STORES | _WRITES:
            names.add(op.argval)
            if op.opname in _WRITES or not _loads_first(steps[i - 1], code):
                of_others.add(op.argval)
        elif op.opname in ("DELETE_DEREF", "STORE_DEREF") and op.argval in code.co_freevars:
            variables.add(op.argval)
        elif op.opname in _GLOBALS and op.argval in _SETTERS:
            text = _looked_up(steps, i)
            anything = anything or text is None
            names.update(filter(None, [text]))
            of_others.update(filter(None, [text]))
        elif op.opname in _GLOBALS | _ATTRIBUTES:
            if op.argval in _REGISTER:
                texts = {t for t in code.co_consts if isinstance(t, str) and t.isidentifier()}
                anything = anything or not texts or any(s.opname in _FORMATS for s in steps)
                names |= texts
            anything = anything or op.argval in (_RUN_ANY if op.opname in _GLOBALS else _WRITE_ANY)
            if op.opname in _ATTRIBUTES and op.argval in ("eval", "train"):
                names.add("training")
                of_others.add("training")
            anything = anything or (op.argval in _HOLD_ANY and writes_to_others(code))
    sets = map(frozenset, (names, of_others, of_parts, variables))
    return Stores(*sets, anything)


def _changes_first(steps: list[dis.Instruction], code: CodeType) -> bool:
    """True if the variable that is the first argument is written to."""
    me = code.co_varnames[: min(1, code.co_argcount)]
    return any(name in me for op in steps for name in _stored(op))


def _loads_first(op: dis.Instruction, code: CodeType) -> bool:
    """True if the instruction leaves the first argument on the stack."""
    name = op.argval[-1] if isinstance(op.argval, tuple) else op.argval
    return "LOAD_FAST" in op.opname and name in code.co_varnames[: min(1, code.co_argcount)]


def _looked_up(steps: list[dis.Instruction], start: int) -> str | None:
    """The constant name in the call of getattr or hasattr that begins here; None for any other use."""
    return _look_up_at(steps, start)[1]


def _looked_up_by(steps: list[dis.Instruction], start: int, code: CodeType) -> str | None:
    """The x of `getattr(self, self.x)`, a call that begins here, with self the first argument; None for any other."""
    me = code.co_varnames[: min(1, code.co_argcount)]
    variables: list[str] = []
    attribute = None
    for op in steps[start + 1 :]:
        if op.opname in _NO_OPERATION:
            continue
        if attribute is not None:
            alone = op.opname in _CALLS and op.arg == 2 and steps[start].argval == "getattr"
            return attribute if alone and not _changes_first(steps, code) else None
        if op.opname == "LOAD_ATTR" and variables == [*me, *me] and me:
            attribute = op.argval
        elif "LOAD_FAST" in op.opname and "STORE" not in op.opname:
            variables += op.argval if isinstance(op.argval, tuple) else (op.argval,)
        else:
            return None
    return None


def _look_up_at(steps: list[dis.Instruction], start: int) -> tuple[int, str | None]:
    """The number of arguments of the call of getattr that begins here, 0 if it is not seen, and its constant name."""
    depth, name, i = 0, None, start
    places = {op.offset: k for k, op in enumerate(steps)}
    straight = True
    while i + 1 < len(steps):
        last, op = steps[i], steps[i + 1]
        i += 1
        if op.opname in _CALLS and last.opname != "PRECALL":
            count = op.arg or 0
            if depth == count:
                constant = straight and name is not None and isinstance(name.argval, str)
                return count, name.argval if constant and name is not None else None
        if op.opname.startswith("RETURN"):
            break
        if "JUMP" in op.opname:  # one of two values, of which the first is followed
            straight = False
            if op.opname in ("JUMP_ABSOLUTE", "JUMP_FORWARD"):
                i = places[op.argval] - 1
                continue
        before = depth
        depth += dis.stack_effect(op.opcode, op.arg if op.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        if depth <= 0:
            break
        if before == 1 and depth == 2:
            name = op if op.opname == "LOAD_CONST" else None
        elif depth <= 2 and op.opname not in _NO_OPERATION:
            name = None  # something was made of it
    return 0, None


def _asks_by_variable(steps: list[dis.Instruction]) -> str | None:
    """The function, getattr or hasattr, that may find that an attribute of a computed name is absent."""
    for i, op in enumerate(steps):
        if op.opname in _GLOBALS and op.argval in ("getattr", "hasattr"):
            count, name = _look_up_at(steps, i)
            if name is None and (op.argval == "hasattr" or count != 2):  # getattr raises without a default
                return str(op.argval)
    return None


def resolved(name: str, level: int, variables: dict[str, Any]) -> str:
    """The full name of what an import statement imports, in code with these global variables."""
    if not level:
        return name
    package = variables.get("__package__") or variables.get("__name__", "").rpartition(".")[0]
    return importlib.util.resolve_name("." * level + name, package)


def _catches(steps: list[dis.Instruction], i: int) -> bool:
    """True for an instruction of an `except` clause, which a `finally` or a generator does not have."""
    op = steps[i]
    if op.opname in _CATCHES:
        return True
    return op.opname == "POP_EXCEPT" and (i == 0 or steps[i - 1].opname != "COPY")


def _stored(op: dis.Instruction) -> tuple[str, ...]:
    """The local variables that an instruction writes."""
    if op.opname in ("DELETE_DEREF", "DELETE_FAST", "STORE_DEREF", "STORE_FAST", "STORE_FAST_MAYBE_NULL"):
        return (op.argval,)
    if op.opname == "STORE_FAST_LOAD_FAST":
        return op.argval[:1]
    return tuple(op.argval) if op.opname == "STORE_FAST_STORE_FAST" else ()


@lru_cache(maxsize=_MANY)
def class_reads(code: CodeType) -> frozenset[int]:
    """Where the code reads `__class__` of a value: offsets of instructions."""
    found = (op for op in dis.get_instructions(code) if op.argval == "__class__")
    return frozenset(op.offset for op in found if op.opname in ("LOAD_ATTR", "LOAD_METHOD"))


@lru_cache(maxsize=_MANY)
def looks_inside(code: CodeType, me: str) -> frozenset[str]:
    """The attributes x of vars(self.x), dir(self.x) and self.x.__dict__; "" for any other object than self itself.

    Args: me: the name of the variable that is self; "" if there is none.
    """
    steps = list(dis.get_instructions(code))
    found = set()
    for i, op in enumerate(steps):
        before = None
        if op.opname in _ATTRIBUTES and op.argval == "__dict__":
            before = steps[i - 1]
        elif op.opname in _GLOBALS and op.argval in ("dir", "vars"):
            end = next((j for j in range(i + 1, len(steps)) if steps[j].opname in _CALLS), i + 1)
            before = steps[end - 1] if end > i + 1 and steps[end - 1].opname != "PUSH_NULL" else None
        if before is None or (me and "LOAD_" in before.opname and before.argval == me):
            continue
        found.add(before.argval if before.opname in _ATTRIBUTES else "")
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= looks_inside(inner, me)
        elif inner == "__dict__":
            found.add("")
    return frozenset(found)


@lru_cache(maxsize=_MANY)
def unfaithful(code: CodeType) -> str | None:
    """Why a trace of this function may mean something else than the function; None if it is faithful."""
    asked = sorted(_BAKED.intersection(code.co_names))
    if asked:
        return f"{place(code)} calls {asked[0]}(), which a capture cannot follow"
    read = reads(code)
    looked = [n for n in read.names if n in _NAMESPACES] + sorted((read.attributes | read.texts) & _INSIDE)
    if not is_look_up(code):
        looked += [t for t in code.co_consts if t == "__dict__"]  # of object.__getattribute__
    if looked:
        return f"{place(code)} reads {looked[0]}, which a capture cannot follow"
    steps = list(dis.get_instructions(code))
    if asks := _asks_by_variable(steps):
        return f"{place(code)} calls {asks}() with a computed name, of which a capture cannot see that it appears later"
    for i, op in enumerate(steps):
        if _catches(steps, i):
            return f"{place(code)} catches exceptions, which a capture does not record"
        if op.opname in _WITH or (op.opname, op.argrepr) == ("LOAD_SPECIAL", "__enter__"):
            return f"{place(code)} has a with statement, as for the gradient mode, which a capture does not record"
        if op.opname in _PATTERNS:
            return f"{place(code)} matches the pattern of a sequence, mapping or class, which a capture cannot follow"
        if op.opname in _WRITES:
            return f"{place(code)} writes to the global variable {op.argval!r}"
    return None
