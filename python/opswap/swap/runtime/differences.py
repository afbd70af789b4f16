# SPDX-License-Identifier: MIT
"""What of a captured state is not as it was, in words: of a module, and of what belongs to no module."""

from __future__ import annotations

from types import CellType, ModuleType
from typing import Any

from torch import Tensor, nn

from .instance_forward import set_by_user
from .members import MISSING, contents_of
from .outside import Outside, read
from .shown import shown
from .snapshot import Answers, AnyTensor, Attributes, Contents, Plain, Scalar, is_as
from .state import State, names_of_tensors

__all__ = ["difference", "outside_change", "state_change"]


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


def state_change(module: nn.Module, state: State, name: str) -> str:
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
