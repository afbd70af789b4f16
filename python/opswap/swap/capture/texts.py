# SPDX-License-Identifier: MIT
"""Texts that a forward makes of sizes, dtypes and devices, for the message of a check.

A trace has no values to put into such a text; it puts a mark there. That is right only if no code reads the text,
so a text is made in four kinds of statements alone:

    assert test, text
    raise Error(text)
    the function of torch that asserts, called with a test and a text
    warnings.warn, or a method of a log, called with texts

The statement is found in the source of the running code, which is compiled again and compared. The rewritten forward
makes the text if the check fails, or says it again.
"""

from __future__ import annotations

import ast
import dis
import linecache
import logging
import re
import warnings
from functools import lru_cache
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from torch.fx import Node, Proxy

from opswap._torch import assert_function

from ..runtime.members import with_inner
from ..runtime.messages import LEVELS
from ..runtime.patched import unpatched

__all__ = ["Piece", "Texts", "has_mark", "is_for_a_message", "without_marks"]

# How a value becomes text, "format", "repr" or "str"; and the format's specification.
Piece = tuple[Node, str, str]

_FIRST, _LAST = "\ue0f1", "\ue0f2"  # of a mark: characters for private use
_MARK = re.compile(f"{_FIRST}([0-9]+){_LAST}")
_MAKERS = {"ascii", "format", "repr", "str"}
_PLAIN_FORMAT = re.compile(r"%[^%rs]")  # of a value that need not be a text, or with a width


class Texts:
    """The values behind the marks of one trace."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def mark(self, node: Node, how: str, specification: str = "") -> str:
        """The text of a value, during the trace."""
        self.pieces.append((node, how, specification))
        return f"{_FIRST}{len(self.pieces) - 1}{_LAST}"

    def split(self, text: str) -> tuple[str | Piece, ...]:
        """A text in pieces: plain ones, and values."""
        parts = _MARK.split(text)
        return tuple(self.pieces[int(part)] if i % 2 else part for i, part in enumerate(parts) if part)


def has_mark(value: Any) -> bool:
    return isinstance(value, str) and _FIRST in value


def without_marks(text: str) -> str:
    return _MARK.sub("...", text)


def is_for_a_message(frame: FrameType) -> bool:
    """True if a text that this frame is making goes into the message of a check, and nowhere else."""
    statement = _statement(frame.f_code, frame.f_lineno)
    if isinstance(statement, ast.Assert):
        read, message = [statement.test], [statement.msg]
    elif isinstance(statement, ast.Raise) and isinstance(statement.exc, ast.Call):
        if not _is_plain_error(_value(statement.exc.func, frame)):
            return False
        read = [part for part in (statement.exc.func, statement.cause) if part is not None]
        message = [*statement.exc.args, *(keyword.value for keyword in statement.exc.keywords)]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if _tells(call.func, frame):
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            return all(_shows_values(part, frame) for part in arguments)
        if len(call.args) != 2 or call.keywords or not _asserts(_value(call.func, frame)):
            return False
        read, message = call.args[:1], call.args[1:]
    else:
        return False
    decides = any(_makes_texts(part, frame) for part in read)
    return not decides and all(_shows_values(part, frame) for part in message)


def _asserts(value: Any) -> bool:
    return value is not None and value is assert_function


def _tells(called: ast.expr, frame: FrameType) -> bool:
    """True for what warns or writes to a log."""
    if isinstance(called, ast.Attribute) and isinstance(_value(called.value, frame), logging.Logger):
        return called.attr in LEVELS
    found = unpatched(_value(called, frame))
    return any(found is unpatched(f) for f in (warnings.warn, *(getattr(logging, level) for level in LEVELS)))


def _is_plain_error(value: Any) -> bool:
    """True for a class of errors that keeps its arguments and looks at none of them."""
    if not (isinstance(value, type) and issubclass(value, BaseException)):
        return False
    return not isinstance(value.__init__, FunctionType) and not isinstance(value.__new__, FunctionType)


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The value of a name, or of a name in a module; None for everything else."""
    if isinstance(node, ast.Attribute):
        holder = _value(node.value, frame)
        return getattr(holder, node.attr, None) if isinstance(holder, ModuleType) else None
    if not isinstance(node, ast.Name):
        return None
    for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if node.id in names:
            return names[node.id]
    return None


def _makes_texts(node: ast.expr, frame: FrameType) -> bool:
    """True if evaluating this may make a text that decides something."""
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Mod) and not _is_arithmetic(node, frame)):
            return True
        if isinstance(part, ast.Name) and part.id in _MAKERS:
            return True
        if isinstance(part, ast.Attribute) and part.attr in ("format", "format_map", "join", "__format__"):
            return True
    return False


def _is_arithmetic(node: ast.expr, frame: FrameType) -> bool:
    """True if every remainder in it is that of a division by a plain number, which a text has not."""
    remainders = [n for n in ast.walk(node) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod)]
    return all(_has_no_format(n.left, frame) for n in remainders)


def _has_no_format(node: ast.expr, frame: FrameType) -> bool:
    """True for values that are not texts: sizes and numbers of dimensions, by any name, and arithmetic on them."""
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, (str, bytes))
    if isinstance(node, ast.Name):
        kind = type(_value(node, frame))
        return kind in (int, float) or issubclass(kind, Proxy)
    if isinstance(node, ast.BinOp):
        return _has_no_format(node.left, frame) and _has_no_format(node.right, frame)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in ("dim", "numel", "size")
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return isinstance(node, ast.Attribute) and node.attr == "ndim"


_DECIDE = (
    ast.Await,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Lambda,
    ast.NamedExpr,
    ast.Not,
    ast.comprehension,
)


def _shows_values(message: ast.expr, frame: FrameType) -> bool:
    """True if marks stand where the values would: nothing pads or cuts them, and no code in the message reads them."""
    for part in ast.walk(message):
        if isinstance(part, _DECIDE):
            return False
        if isinstance(part, ast.FormattedValue) and part.conversion != -1 and part.format_spec is not None:
            return False
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod) and not _is_plain_format(part.left):
            return False
        other = isinstance(part, ast.BinOp) and not isinstance(part.op, (ast.Add, ast.Mod))
        if other and _makes_texts(part, frame):
            return False
        if isinstance(part, ast.Subscript) and any(_makes_texts(p, frame) for p in (part.value, part.slice)):
            return False
        if isinstance(part, ast.Call) and not _is_known(part.func, frame):
            return False
    return True


def _is_plain_format(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and not _PLAIN_FORMAT.search(node.value.replace("%%", ""))
    )


def _is_known(called: ast.expr, frame: FrameType) -> bool:
    """True for calls in a message that read no text: of sizes, and those that make texts."""
    if isinstance(called, ast.Attribute):
        on_text = isinstance(called.value, ast.Constant) and isinstance(called.value.value, str)
        return called.attr in ("dim", "numel", "size") or (
            on_text and called.attr == "format" and not re.search("[!]", called.value.value)
        )
    return _value(called, frame) in (len, list, repr, str, tuple)


@lru_cache(maxsize=1024)
def _statement(code: CodeType, line: int) -> ast.stmt | None:
    """The innermost statement at this line of a function, None if the source is not that of the code."""
    tree = _tree(code.co_filename, "".join(linecache.getlines(code.co_filename)))
    if tree is None or not _is_compiled_from(code, *tree):
        return None
    found = [
        node
        for node in ast.walk(tree[0])
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    inner = [node for node in found if not hasattr(node, "body")]
    return inner[0] if len(inner) == 1 else None


@lru_cache(maxsize=32)
def _tree(file: str, source: str) -> tuple[ast.Module, CodeType] | None:
    try:
        tree = ast.parse(source, file)
        return tree, compile(tree, file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _is_compiled_from(code: CodeType, tree: ast.Module, module: CodeType) -> bool:
    for found in with_inner(module):
        if found is not module and (found.co_name, found.co_firstlineno) == (
            code.co_name,
            code.co_firstlineno,
        ):
            return _same(found, code)
    return False


def _same(a: CodeType, b: CodeType) -> bool:
    """True if both have the same instructions on the same lines."""
    if (a.co_code, a.co_names, a.co_varnames) != (b.co_code, b.co_names, b.co_varnames):
        return False
    if list(dis.findlinestarts(a)) != list(dis.findlinestarts(b)):
        return False
    plain = [[c for c in code.co_consts if not isinstance(c, CodeType)] for code in (a, b)]
    return repr(plain[0]) == repr(plain[1])
