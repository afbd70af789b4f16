# SPDX-License-Identifier: MIT
"""The user's line as a syntax tree: which statement an operator belongs to, and what becomes of a number it gives."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

__all__ = [
    "BRANCH",
    "LOOP",
    "READS",
    "SIZE",
    "SIZED",
    "VALUE",
    "called",
    "enclosing_function",
    "role_of",
    "statement_at",
]

# What becomes of a Python number that was made of a tensor.
BRANCH, SIZE, LOOP, VALUE = "branch", "size", "loop", "value"

# Names of functions and methods whose numbers are sizes.
_BY_SIZE = """
    adaptive_avg_pool2d adaptive_max_pool2d arange as_strided broadcast_to chunk combinations empty
    empty_strided expand eye full histc interpolate islice linspace logspace multinomial narrow new_empty
    new_full new_ones new_zeros one_hot ones pad rand randint randn randperm range repeat reshape resize_
    roll select sort split split_with_sizes tensor_split tile topk tril_indices triu_indices unbind
    unflatten unfold vander view zeros
"""
SIZED = frozenset(_BY_SIZE.split())
READS = frozenset({"item", "tolist", "int", "float", "bool"})
_MOST_FILES = 64


@lru_cache(maxsize=_MOST_FILES)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


def statement_at(file: str, line: int) -> ast.stmt | None:
    """The innermost statement of a line, None if the source cannot be read.

    Of a statement whose body is on its own line, `if mask.any(): return x`, it is the one that reads a number.
    """
    tree = _tree(file) if file else None
    around: list[ast.stmt] = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            around.append(node)
    if not around:
        return None
    last = max(node.lineno for node in around)
    *outer, inner = [node for node in around if node.lineno == last]
    return _reader(outer, inner)


def _reader(outer: list[ast.stmt], inner: ast.stmt) -> ast.stmt:
    """Which of the statements on a line reads a number: the innermost that says so; if none does, one with a call."""
    for reads in (_explicit_reads, _calls):
        found = next((node for node in (inner, *reversed(outer)) if reads(_heads(node))), None)
        if found is not None:
            return found
    return outer[0] if outer else inner


def enclosing_function(file: str, line: int) -> ast.AST | None:
    """The innermost function definition around a line; the module if there is none."""
    tree = _tree(file) if file else None
    found: ast.AST | None = tree
    for node in ast.walk(tree) if tree is not None else ():
        function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if function and node.lineno <= line <= (node.end_lineno or node.lineno):
            found = node
    return found


def role_of(file: str, line: int) -> str:
    """What a line makes of the number that it reads from a tensor: BRANCH, SIZE, LOOP, or only a VALUE.

    A number that is assigned to a name is followed to the other uses of this name in the same function.
    """
    statement = statement_at(file, line)
    if statement is None:
        return VALUE
    roles = set(_roles(statement, _reads(_heads(statement))))
    names = _targets(statement)
    function = enclosing_function(file, line)
    if names and function is not None:
        for node in ast.walk(function):
            if isinstance(node, ast.stmt) and node is not statement and not isinstance(node, ast.FunctionDef):
                uses = [n for head in _heads(node) for n in ast.walk(head) if _loads(n, names)]
                roles |= set(_roles(node, uses))
    return next((role for role in (BRANCH, LOOP, SIZE) if role in roles), VALUE)


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """The expressions of a statement without the statements in its body."""
    if isinstance(statement, ast.Match):
        return [statement.subject, *(case.guard for case in statement.cases if case.guard is not None)]
    return [
        child
        for child in ast.iter_child_nodes(statement)
        if not isinstance(child, (ast.stmt, ast.excepthandler))
    ]


def _targets(statement: ast.stmt) -> frozenset[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return frozenset()
    return frozenset(n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name))


def _loads(node: ast.AST, names: frozenset[str]) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names


def _calls(heads: list[ast.AST]) -> list[ast.Call]:
    return [n for head in heads for n in ast.walk(head) if isinstance(n, ast.Call)]


def _explicit_reads(heads: list[ast.AST]) -> list[ast.AST]:
    """Calls such as x.item() and int(x)."""
    return [n for n in _calls(heads) if called(n) in READS]


def _reads(heads: list[ast.AST]) -> list[ast.AST]:
    """The explicit ones; if there are none, all names in the heads, as in `if mask.any():`."""
    return _explicit_reads(heads) or [n for head in heads for n in ast.walk(head) if isinstance(n, ast.Name)]


def _roles(statement: ast.stmt, uses: list[ast.AST]) -> Iterator[str]:
    """Roles that the expressions `uses` have in a statement."""
    used = {id(use) for use in uses}

    def inside(node: ast.AST | None) -> bool:
        return node is not None and any(id(n) in used for n in ast.walk(node))

    if isinstance(statement, (ast.If, ast.While, ast.Assert)) and inside(statement.test):
        yield BRANCH
    if isinstance(statement, ast.Match) and any(map(inside, _heads(statement))):
        yield BRANCH
    if isinstance(statement, ast.For) and inside(statement.iter):
        yield LOOP
    for head in _heads(statement):
        for node in ast.walk(head):
            if (isinstance(node, ast.IfExp) and inside(node.test)) or (
                isinstance(node, ast.BoolOp) and any(map(inside, node.values))
            ):
                yield BRANCH
            elif isinstance(node, ast.comprehension) and inside(node.iter):
                yield LOOP
            elif (isinstance(node, (ast.Slice, ast.Subscript)) and inside(getattr(node, "slice", node))) or (
                isinstance(node, ast.Call) and called(node) in SIZED and any(map(inside, _arguments(node)))
            ):
                yield SIZE


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(k.value for k in call.keywords)]


def called(call: ast.Call) -> str:
    """The name of the function or method that a call is of, "" if it has none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
