# SPDX-License-Identifier: MIT
"""Why a rewritten forward, or one rewrite in it, runs the original code: the first condition that fails, in words.

Everything here repeats, slowly and with values, what `guards.capture_is_valid` and the generated code check. It runs
only when the original code runs anyway.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from threading import RLock
from typing import Any

from torch import Tensor, nn

from opswap._torch import is_ordinary

from .condition_texts import text_of_condition
from .differences import outside_change, state_change
from .guards import SET_METHODS, globally_hooked, hooked, listed, one_mode
from .instance_forward import generated_forward, overridden, recipe_of
from .lists import names_in
from .plan_of import plan_of
from .shown import shown

__all__ = [
    "GLOBAL_HOOKS",
    "call_reason",
    "failure",
    "shown",
    "site_names",
    "site_reason",
]

GLOBAL_HOOKS = "torch has global module hooks"
_OF_GUARDS = f"{one_mode.__module__}.".replace(".", "_")  # as generated code names its functions


def failure(module: nn.Module, inputs: Sequence[Any] = ()) -> str | None:
    """Why the captured forward no longer means what the module's own forward means; None if it still does.

    Checks what `guards.capture_is_valid` checks, in the same order. Args: inputs: what the forward is called with.
    """
    record = vars(module).get("_opswap_record")
    if record is None:
        return "the record of the swap is gone"
    if record.moved:
        return record.moved[0]
    changed = state_change(module, record.root, "self")
    if changed:
        return changed
    for i, x in enumerate(inputs):
        if not isinstance(x, Tensor):
            hint = ": pass example_inputs to the swap" if type(x) in (list, tuple) else ""
            return f"input {i} is {shown(x)}, was a Tensor{hint}"
        if not is_ordinary(x):
            return f"input {i} is a {type(x).__name__}, was a Tensor"
    if (record.inlined or record.passed) and globally_hooked():
        return GLOBAL_HOOKS
    names = _names(module)
    for child, state in (*record.inlined, *record.passed):
        name = names(child)
        if hooked(child):
            return _hooked(child, name)
        if type(child) is not state.cls:
            return f"{name} is now {shown(child)}, was a {state.cls.__name__}"
        changed = state_change(child, state, name)
        if changed:
            return changed
    for child, state in (*record.containers, *record.read):
        if type(child) is not state.cls:
            return f"{names(child)} is now {shown(child)}, was a {state.cls.__name__}"
        changed = state_change(child, state, names(child))
        if changed:
            return changed
    written = record.conflict(module)
    if written:
        return f"a hook or code of a module that forward calls may write to {written}, which forward reads"
    return outside_change(record.outside) or None


def _hooked(module: nn.Module, name: str) -> str:
    """What calling the module does more than the forward that the swap knows."""
    replaced = "forward" in vars(module) and overridden(module)
    found = [m for m in (*SET_METHODS, "_call_impl") if m in vars(module)]
    if replaced or found:
        return f"{name}.{'forward' if replaced else found[0]} was replaced"
    return f"hooks on {name}"


def _names(root: nn.Module) -> Callable[[nn.Module], str]:
    """Names modules by their paths in the model that was swapped; by their classes if they are no longer there."""
    planned = plan_of(root)
    prefix = f"{planned.path}." if planned is not None and planned.path else ""
    paths = {id(m): f"{prefix}{path}" for path, m in root.named_modules() if path}
    return lambda m: paths.get(id(m), f"a {type(m).__name__} that is no longer in the module")


def call_reason(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a call of a module with a generated forward runs the module's own."""
    cls = recipe_of(module).original
    if cls.forward is not generated_forward(module).__wrapped__:
        return f"{cls.__name__}.forward was replaced"
    given = inspect.signature(type(module).forward).bind(module, *args, **kwargs)
    _, *parameters = given.signature.parameters.values()
    required = {}
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            if given.arguments.get(p.name):
                return f"arguments were given in {'*' * (1 + (p.kind is p.VAR_KEYWORD))}{p.name}"
        elif p.default is p.empty or p.name in recipe_of(module).given:
            value = required[p.name] = given.arguments.get(p.name, p.default)
            if value is p.default:
                return f"argument {p.name} is {shown(value)}, was a tensor in the run with example_inputs"
        elif given.arguments.get(p.name, p.default) is not p.default:
            return f"argument {p.name} is {shown(given.arguments[p.name])}, was {shown(p.default)} by default"
    lists = recipe_of(module).lists
    other = next((n for n, known in lists.items() if not listed(required[n], *known)), None)
    if other is not None:
        return f"argument {other} is {shown(required[other])}, was {lists[other]}"
    inputs = [v for name, value in required.items() for v in (value if name in lists else [value])]
    required.update(
        (k, v) for n, known in lists.items() for k, v in zip(names_in(n, known), required[n], strict=True)
    )
    return _too_little(module, required) or failure(module, tuple(inputs)) or _no_path(module, required)


def _too_little(module: nn.Module, inputs: dict[str, Any]) -> str:
    """What the cheap condition before all others says, "" if it holds or there is none."""
    functions, scope = _functions(recipe_of(module).code), {**generated_forward(module).__globals__, **inputs}
    for term in _terms(_validity(functions["forward"][0]).test):
        called = term.func.id if isinstance(term, ast.Call) and isinstance(term.func, ast.Name) else ""
        if text_of_condition(scope.get(called)) is not None and _value(term, scope) is False:
            return _in_words(term, scope, {})
    return ""


def _no_path(module: nn.Module, inputs: dict[str, Any]) -> str:
    """Which condition fails on each captured path."""
    functions = _functions(recipe_of(module).code)
    me = next(iter(inspect.signature(type(module).forward).parameters))
    scope = {**generated_forward(module).__globals__, **inputs, me: module}
    reasons = []
    for test in _path_tests(functions["forward"][0]):
        for term in _terms(test):
            if _value(term, scope) is True:
                continue
            guards = functions.get(term.func.id) if isinstance(term, ast.Call) else None
            reasons.append(_mode(module, term) if guards is None else _guard(guards[0], functions, scope))
            break
    return "; ".join(dict.fromkeys(reasons)) or "a condition that is true again"


def _path_tests(forward: ast.FunctionDef) -> Iterator[ast.expr]:
    return (n.test for n in _validity(forward).body if isinstance(n, ast.If))


def _validity(forward: ast.FunctionDef) -> ast.If:
    """The check of all that every path relies on."""
    bound = [n for n in forward.body if isinstance(n, ast.If)][-1]
    return next(n for n in bound.body if isinstance(n, ast.If))


def _mode(module: nn.Module, term: ast.expr) -> str:
    """in_mode(self, flag)"""
    flag = ast.literal_eval(term.args[1])
    if module.training is not flag:
        return f"self.training is {module.training}, was {flag}"
    names = _names(module)
    others = [m for m, _ in module._opswap_record.inlined if m.training is not flag]
    return f"{names(others[0])}.training is {not flag}, was {flag}" if others else "the mode changes"


def _guard(path: ast.FunctionDef, functions: _Functions, scope: dict[str, Any]) -> str:
    """The question about sizes that a path answers otherwise."""
    returned = next(n for n in ast.walk(path) if isinstance(n, ast.Return))
    for term in _terms(returned.value):
        if _value(term, scope) is True:
            continue
        name = term.func.id if term.func.id in functions else term.args[0].id
        function, source = functions[name]
        expression = _expression(function)
        named = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name)}
        given = [a.arg for a in function.args.args[1:] if a.arg in scope and a.arg in named]
        values = ", ".join(f"{name} is {shown(scope[name])}" for name in given)
        text = ast.unparse(expression).replace(_OF_GUARDS, "")
        return f"{text} is False{': ' if values else ''}{values} ({source})"
    return "a condition on sizes fails"


def site_reason(code: str, name: str, scope: dict[str, Any]) -> str:
    """Why the function `name` of generated code runs the stock operators.

    Args: scope: the globals of the code and the values of the function's arguments.
    """
    functions = _functions(code)
    tests = [n.test for n in ast.walk(functions[name][0]) if isinstance(n, ast.If)]
    for term in _terms(tests[-1 if name == "forward" else 0]):
        value = _value(term, scope)
        if isinstance(value, Exception) or not value:
            return _in_words(term, scope, _arguments(functions, name))
    return "a condition that is true again"


def _arguments(functions: _Functions, name: str) -> dict[str, ast.expr]:
    """What the forward passes to a function of its code, by the names that it has there."""
    if name == "forward":
        return {"m0": ast.Name("self")}
    parameters = [a.arg for a in functions[name][0].args.args]
    for caller, (function, _) in functions.items():
        if caller.startswith("opswap_fused_"):
            for call in _calls(function):
                if isinstance(call.func, ast.Name) and call.func.id == name:
                    return dict(zip(parameters, call.args, strict=False))
    return {}


def _in_words(term: ast.expr, scope: dict[str, Any], given: dict[str, ast.expr]) -> str:
    """A condition that is false, with the values that it depends on. given: expressions for arguments."""
    called = term.func.id if isinstance(term, ast.Call) and isinstance(term.func, ast.Name) else ""
    text_for = _TEXTS.get(called) or text_of_condition(scope.get(called))
    if text_for is not None:
        if called == "unhooked" and not globally_hooked():
            found = next(a for a in term.args if hooked(scope[a.id]))
            return _hooked(scope[found.id], _with(given, found))
        try:
            arguments = [eval(_compiled(a), scope) for a in term.args]
            options = {k.arg: eval(_compiled(k.value), scope) for k in term.keywords}
            text = text_for(*arguments, **options)
        except Exception:
            text = ""
        if text:
            return text
    names = dict.fromkeys(n.id for n in ast.walk(term) if isinstance(n, ast.Name) and n.id in scope)
    known = {n: given[n] for n in names if n in given and not isinstance(scope[n], Tensor)}
    inner, wanted = (term.operand, True) if isinstance(term, ast.UnaryOp) else (term, False)
    if isinstance(inner, ast.Attribute) and inner.attr == "training" and wanted:
        return f"it is for evaluation: {_with(known, inner)} is True"
    if isinstance(inner, (ast.Name, ast.Attribute)):
        return f"{_with(known, inner)} is {shown(_value(inner, scope))}"
    values = [f"{n} is {shown(scope[n])}" for n in names if isinstance(scope[n], Tensor)]
    return f"{': '.join([f'{_with(known, inner)} is {wanted}', ', '.join(values)])}".removesuffix(": ")


def _with(known: dict[str, ast.expr], expression: ast.expr) -> str:
    with _parsing:
        tree = ast.parse(ast.unparse(expression), mode="eval")
    return ast.unparse(_Inline(known).visit(tree.body))


def _other_class(input: Any, *others: Any) -> str:
    tensors = [v for v in (input, *others) if isinstance(v, Tensor) and not is_ordinary(v)]
    if not tensors:
        return f"no kernel for {shown(input)}"
    return f"the input is a {type(tensors[0]).__name__}, whose functions are its own"


# What the conditions of every replacement mean; those of a rule have their texts beside them, see `describe_condition`.
_TEXTS: dict[str, Callable[..., str]] = {
    "opswap_ordinary": _other_class,
    "unhooked": lambda *modules: GLOBAL_HOOKS,
}

_Functions = dict[str, tuple[ast.FunctionDef, str]]
# CPython counts the depth of a tree that it makes once for all threads: two of them would raise SystemError. The
# collector may come back here in the same thread.
_parsing = RLock()


def _functions(code: str) -> _Functions:
    """The functions of generated code by name, with the comment above each."""
    lines = code.splitlines()
    found: _Functions = {}
    above = ""
    with _parsing:
        tree = ast.parse(code)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            line = lines[node.lineno - 2] if node.lineno > 1 else ""
            above = line[2:] if line.startswith("# ") else above
            found[node.name] = node, above
    return found


def site_names(code: str) -> dict[str, str]:
    """The functions of generated code that choose between a replacement and stock operators, with their comments."""
    return {
        name: comment for name, (_, comment) in _functions(code).items() if name.startswith("opswap_site_")
    }


def _terms(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [t for value in test.values for t in _terms(value)]
    if isinstance(test, ast.BoolOp):  # the shorter way to know the same, or each condition by itself
        return _terms(test.values[-1])
    return [test]


def _compiled(expression: ast.expr) -> Any:
    return compile(ast.fix_missing_locations(ast.Expression(expression)), "<opswap>", "eval")


def _value(expression: ast.expr, scope: dict[str, Any]) -> Any:
    try:
        return eval(_compiled(expression), scope)
    except Exception as error:
        return error


class _Inline(ast.NodeTransformer):
    """Puts expressions in place of names."""

    def __init__(self, known: dict[str, ast.expr]) -> None:
        self.known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.known.get(node.id, node)


def _inlined(function: ast.FunctionDef) -> Iterator[ast.expr]:
    """The expressions that a function of assignments evaluates, over its arguments alone."""
    known: dict[str, ast.expr] = {}
    for statement in function.body:
        value = getattr(statement, "value", None)
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            continue
        expression = _Inline(known).visit(value)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            known = {**known, statement.targets[0].id: expression}
        yield expression


def _calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    return (e for e in _inlined(function) if isinstance(e, ast.Call))


def _expression(function: ast.FunctionDef) -> ast.expr:
    """What a function of assignments returns, as one expression."""
    return list(_inlined(function))[-1]
