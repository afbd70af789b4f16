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
from types import CellType, ModuleType
from typing import Any

from torch import Tensor, nn

from opswap._torch import is_ordinary

from .condition_texts import text_of_condition
from .guards import SET_METHODS, globally_hooked, hooked, listed
from .instance_forward import generated_forward, overridden, recipe_of, set_by_user
from .lists import names_in
from .outside import Outside, read
from .plan_of import plan_of
from .shown import shown
from .snapshot import MISSING, Answers, AnyTensor, Attributes, Contents, Plain, Scalar, contents_of, is_as
from .state import State, names_of_tensors

__all__ = [
    "GLOBAL_HOOKS",
    "call_reason",
    "difference",
    "failure",
    "outside_change",
    "shown",
    "site_names",
    "site_reason",
]

GLOBAL_HOOKS = "torch has global module hooks"


def failure(module: nn.Module, inputs: Sequence[Any] = ()) -> str | None:
    """Why the captured forward no longer means what the module's own forward means; None if it still does.

    Checks what `guards.capture_is_valid` checks, in the same order. Args: inputs: what the forward is called with.
    """
    record = vars(module).get("_opswap_record")
    if record is None:
        return "the record of the swap is gone"
    if record.moved:
        return record.moved[0]
    changed = _change(module, record.root, "self")
    if changed:
        return changed
    for i, x in enumerate(inputs):
        if not isinstance(x, Tensor):
            hint = ": pass example_inputs to the swap" if type(x) in (list, tuple) else ""
            return f"input {i} is {shown(x)}, was a Tensor{hint}"
        if not is_ordinary(x):
            return f"input {i} is a {type(x).__name__}, was a Tensor"
    if record.inlined and globally_hooked():
        return GLOBAL_HOOKS
    names = _names(module)
    for child, state in record.inlined:
        name = names(child)
        if hooked(child):
            return _hooked(child, name)
        if type(child) is not state.cls:
            return f"{name} is now {shown(child)}, was a {state.cls.__name__}"
        changed = _change(child, state, name)
        if changed:
            return changed
    for child, state in (*record.containers, *record.read):
        if type(child) is not state.cls:
            return f"{names(child)} is now {shown(child)}, was a {state.cls.__name__}"
        changed = _change(child, state, names(child))
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


def outside_change(outside: Outside) -> str:
    """What changed outside of the model's modules, "" if nothing did."""
    if outside.lost:
        return "something that the forward reads could not be saved with the model, or differs after loading"
    for holder, name, then in outside.watches:
        changed = difference(read(holder, name), then, _holder(holder, name))
        if changed:
            return changed
    for holder, names in outside.shadows:
        hidden = [name for name in names if name in vars(holder)]
        if hidden:
            return f"the builtin {hidden[0]} is hidden by {_holder(holder, hidden[0])}"
    for function, answer in outside.queries:
        now = function()
        if now is not answer:
            library = function.__module__.partition(".")[0] if function.__module__ else "torch"
            return f"{library}.{function.__name__}() is {shown(now)}, was {shown(answer)}"
    return ""


def _holder(holder: Any, name: str) -> str:
    if isinstance(holder, CellType):
        return "a variable of an enclosing function"
    if isinstance(holder, ModuleType):
        return f"{holder.__name__}.{name}"
    return f"{getattr(holder, '__qualname__', type(holder).__name__)}.{name}"


def _names(root: nn.Module) -> Callable[[nn.Module], str]:
    """Names modules by their paths in the model that was swapped; by their classes if they are no longer there."""
    planned = plan_of(root)
    prefix = f"{planned.path}." if planned is not None and planned.path else ""
    paths = {id(m): f"{prefix}{path}" for path, m in root.named_modules() if path}
    return lambda m: paths.get(id(m), f"a {type(m).__name__} that is no longer in the module")


def _change(module: nn.Module, state: State, name: str) -> str:
    """How the module differs from what was observed, "" if it does not. `name`: what to call it."""
    if state.forward is not None and state.cls.forward is not state.forward:
        return f"{state.cls.__name__}.forward was replaced"
    changed = _changed_child(module, state, name)
    if changed:
        return changed
    for attribute, then in zip(state.names, state.values, strict=True):
        changed = difference(getattr(module, attribute, MISSING), then, f"{name}.{attribute}")
        if changed:
            return changed
    for attribute, none in state.optional:
        now = getattr(module, attribute, None)
        if (now is None) is not none:
            return f"{name}.{attribute} is {shown(now)}, was {'None' if none else 'a Tensor'}"
    kept = vars(module)
    held = (kept, kept["_parameters"], kept["_buffers"], kept["_modules"])
    overridden = [k for k in state.methods if set_by_user(module, k)]
    overridden += [k for k in state.absent if any(k in values for values in held)]
    if overridden:
        return f"{name}.{overridden[0]} was set on the instance"
    return "" if state.listed is None else _changed_tensors(names_of_tensors(module), state.listed, name)


def _changed_tensors(now: list[str], then: tuple[str, ...], name: str) -> str:
    added, gone = [n for n in now if n not in then], [n for n in then if n not in now]
    if added or gone:
        what = f"{added[0]} was added" if added else f"{gone[0]} is gone, or the same tensor as another one"
        return f"the parameters and buffers of {name} changed: {what}"
    return "" if tuple(now) == then else f"the parameters and buffers of {name} are in another order"


def _changed_child(module: nn.Module, state: State, name: str) -> str:
    if state.children is None:
        return ""
    found = vars(module)["_modules"]
    if len(found) != len(state.children):
        return f"{name} has {len(found)} children, had {len(state.children)}"
    for (key, now), then in zip(found.items(), state.children, strict=True):
        if now is not then:
            return f"{name}.{key} was replaced: it is {shown(now)}, was {shown(then)}"
    for key, known in zip(found, state.child_names, strict=True):
        if key != known:
            return f"the child {known} of {name} is called {key} now"
        if key in vars(module):
            return f"{name}.{key} was set on the instance, which hides the child"
    return ""


def difference(now: Any, then: Any, name: str) -> str:
    """How a value differs from its snapshot, "" if it does not."""
    if is_as(now, then):
        return ""
    if isinstance(then, (Answers, Attributes, Contents)) and type(now) is not then.kind:
        return f"{name} changed from a {then.kind.__name__} to {shown(now)}"
    if type(then) is Contents:
        return _changed_contents(now, then, name)
    if type(then) is Answers:
        return _changed_answer(now, then, name)
    if type(then) is AnyTensor and isinstance(now, Tensor):
        return _changed_attribute(now, then, name)
    if type(then) is Attributes:
        inside = "" if then.contents is None else difference(now, then.contents, name)
        changed = inside or _changed_attribute(now, then, name)
        own = next((n for n in then.absent if n in vars(now)), "")
        return changed or (f"{name}.{own} was set on the object" if own else "")
    if type(then) is Plain and then.kinds and type(now) is then.kind:
        return _changed_element(now, then.value, name)
    was = shown(then.value if isinstance(then, (Plain, Scalar)) else then)
    if now is MISSING or then is MISSING:
        return f"{name} is gone, was {was}" if now is MISSING else f"{name} is {shown(now)}, did not exist"
    return f"{name} changed from {was} to {shown(now)}"


def _changed_attribute(now: Any, then: Attributes | AnyTensor, name: str) -> str:
    parts = (
        (getattr(now, k, MISSING), kept, f"{name}.{k}")
        for k, kept in zip(then.names, then.values, strict=True)
    )
    return next(filter(None, (difference(*part) for part in parts)), "")


def _changed_answer(now: Any, then: Answers, name: str) -> str:
    """How the results of an object's own look-up changed."""
    inside = "" if then.contents is None else difference(now, then.contents, name)
    if inside:
        return inside
    for key, kept in zip(then.names, then.values, strict=True):
        try:
            answer = getattr(now, key, MISSING)
        except Exception as error:
            return f"{name}.{key} raises {type(error).__name__}"
        changed = difference(answer, kept, f"{name}.{key}")
        if changed:
            return changed
    return ""


def _changed_element(now: Any, was: Any, name: str) -> str:
    """How a list or tuple of plain values differs from what it was."""
    if len(now) != len(was):
        return f"len({name}) changed from {len(was)} to {len(now)}"
    for i, (a, b) in enumerate(zip(now, was, strict=True)):
        if type(a) is not type(b) or a != b:
            return f"{name}[{i}] changed from {shown(b)} to {shown(a)}"
    return f"{name} changed from {shown(was)} to {shown(now)}"


def _changed_contents(now: Any, then: Contents, name: str) -> str:
    _, keys, values = contents_of(now)
    if len(values) != then.length:
        return f"len({name}) changed from {then.length} to {len(values)}"
    if then.maxlen and now.maxlen != then.maxlen[0]:
        return f"{name}.maxlen changed from {then.maxlen[0]} to {now.maxlen}"
    if then.keys and keys != then.keys:
        return f"the keys of {name} changed from {shown(list(then.keys))} to {shown(list(keys))}"
    places = then.keys or range(then.length)
    parts = zip(places, values, then.values, strict=True)
    return next(filter(None, (difference(v, kept, f"{name}[{k!r}]") for k, v, kept in parts)), "")


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
    return failure(module, tuple(inputs)) or _no_path(module, required)


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
    bound = [n for n in forward.body if isinstance(n, ast.If)][-1]
    valid = next(n for n in bound.body if isinstance(n, ast.If))
    return (n.test for n in valid.body if isinstance(n, ast.If))


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
        values = [f"{a.arg} is {shown(scope[a.arg])}" for a in function.args.args[1:] if a.arg in scope]
        shows = f": {', '.join(values)}" if values else ""
        return f"{_expression(function)} is False{shows} ({source})"
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


def _covers(
    tensors: tuple[Tensor, ...],
    groups: int,
    ndims: tuple[int, ...],
    channels: Any = None,
    spatial: Any = None,
    batches: Any = None,
) -> str:
    first, total = tensors[0], sum(t.shape[1] if t.dim() > 1 else 0 for t in tensors)
    for t in tensors:
        if t.dim() not in ndims:
            return f"an input has {t.dim()} dimensions: proven for {_listed(ndims)}"
        if t.dtype != first.dtype or t.device != first.device:
            return f"inputs differ: {shown(first)} and {shown(t)}"
    if len(tensors) == 1 and 1 < groups == total:
        return f"a shuffle of {total} groups of one channel moves nothing"
    if total % groups or (channels is not None and total not in channels):
        proven = f"multiples of {groups}" if channels is None else _listed(channels)
        return f"the inputs have {total} channels: proven for {proven}"
    if batches is not None and first.shape[0] not in batches:
        return f"the batch has {first.shape[0]} images: proven for {_listed(batches)}"
    if spatial is not None and tuple(first.shape[2:]) not in spatial:
        return f"the input has sizes {tuple(first.shape[2:])}: proven for {_listed(spatial)}"
    return f"no kernel for {shown(first)}"


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(map(str, values))


def _wins(input: Tensor, losing: tuple[str, ...]) -> str:
    return (
        f"the replacement was measured slower for {' and '.join(losing)} tensors: the input is {shown(input)}"
    )


def _other_class(input: Any, *others: Any) -> str:
    tensors = [v for v in (input, *others) if isinstance(v, Tensor) and not is_ordinary(v)]
    if not tensors:
        return f"no kernel for {shown(input)}"
    return f"the input is a {type(tensors[0]).__name__}, whose functions are its own"


# What the conditions of the rules mean; others are shown as they are written.
_TEXTS: dict[str, Callable[..., str]] = {
    "within_proof": _covers,
    "supported_norm": lambda norm, input: f"no kernel for {shown(norm)} of {shown(input)}",
    "on_cpu": lambda input: f"no kernel for {input.device.type}",
    "opswap_ordinary": _other_class,
    "poolable": lambda input, ndims=None: f"no kernel for {shown(input)}",
    "unhooked": lambda *modules: GLOBAL_HOOKS,
    "not_slower": _wins,
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


def _expression(function: ast.FunctionDef) -> str:
    """What a function of assignments returns, as one expression."""
    return ast.unparse(list(_inlined(function))[-1])
