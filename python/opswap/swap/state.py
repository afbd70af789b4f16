# SPDX-License-Identifier: MIT
"""The Python state of a module that its forward may read, and whether it is still as it was.

What torch keeps for a module is read by the rewritten forward itself. Everything else would be baked into it:
numbers, texts, lists, functions, constants of the class, the forward as the class has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["State", "observe", "stock_class", "unchanged"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice, frozenset, torch.dtype)
_INTERNAL = frozenset(vars(nn.Module())) | {"_opswap_record"}
_LONG = 256  # containers of more elements are compared by their length alone
_DEEP = 4  # levels of containers in containers


@dataclass(frozen=True)
class _Contents:
    """What a list, tuple, dict or functools.partial held."""

    kind: type
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    length: int


@dataclass(frozen=True)
class State:
    """What a capture took for granted of one module.

    cls: its class, `forward` that of the class. children: its modules. names, values: attributes of the instance
    and constants of the class, containers as `_Contents`. methods: functions of the class by name.
    """

    cls: type
    forward: Any
    children: tuple[nn.Module | None, ...]
    names: tuple[str, ...]
    values: tuple[Any, ...]
    methods: tuple[str, ...]


def stock_class(module: nn.Module) -> type:
    """The module's class as its author wrote it."""
    cls = type(module)
    recipe = getattr(cls, "_opswap_recipe", None)
    return cls if recipe is None or recipe.make_class() is not cls else recipe.original


def observe(module: nn.Module) -> State:
    """The state of a module that its capture depends on."""
    cls = stock_class(module)
    found = {k: v for k, v in vars(module).items() if k not in _INTERNAL}
    methods = []
    for base in cls.__mro__:
        if base.__module__.startswith("torch.") or base is object:
            continue
        for name, value in vars(base).items():
            if name.startswith("__") or name == "_opswap_recipe":
                continue
            if hasattr(value, "__get__"):
                methods.append(name)
            elif _is_constant(_snapshot(value)):
                found.setdefault(name, value)
    kept = {k: _snapshot(v) for k, v in found.items() if not isinstance(v, Tensor)}
    children = tuple(module._modules.values())
    return State(cls, cls.forward, children, tuple(kept), tuple(kept.values()), tuple(dict.fromkeys(methods)))


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _snapshot(value: Any, depth: int = 0) -> Any:
    if _is_plain(value) or type(value) not in (list, tuple, dict, partial) or depth == _DEEP:
        return value
    kind, value = type(value), _parts(value)
    if len(value) > _LONG:
        return _Contents(kind, (), (), len(value))
    keys, values = (tuple(value), value.values()) if kind is dict else ((), value)
    return _Contents(kind, keys, tuple(_snapshot(v, depth + 1) for v in values), len(value))


def _parts(value: Any) -> Any:
    """The container itself, or the function and the arguments that a partial is made of."""
    return (value.func, value.args, value.keywords) if type(value) is partial else value


def _is_constant(kept: Any) -> bool:
    """True for a snapshot without objects, which a copy of the module would not share with the class."""
    return all(map(_is_constant, kept.values)) if type(kept) is _Contents else _is_plain(kept)


def _is_as(now: Any, then: Any) -> bool:
    """True where `now` is what the snapshot was taken of, or another object that means the same."""
    if type(then) is not _Contents:
        return now is then or (type(now) is type(then) and isinstance(then, (*_PLAIN, tuple)) and now == then)
    if type(now) is not then.kind:
        return False
    now = _parts(now)
    if len(now) != then.length:
        return False
    if then.keys:
        for (key, value), known, kept in zip(now.items(), then.keys, then.values):  # noqa: B905
            if key != known or not _is_as(value, kept):
                return False
        return True
    for value, kept in zip(now, then.values):  # noqa: B905, SIM110 (neither is traceable otherwise)
        if not _is_as(value, kept):
            return False
    return True


def unchanged(module: nn.Module, state: State) -> bool:
    """True where the module is as it was observed; torch.compile traces through it."""
    children = module._modules.values()
    if state.cls.forward is not state.forward or len(children) != len(state.children):
        return False
    for now, then in zip(children, state.children):  # noqa: B905 (strict= is not traceable; lengths are equal)
        if now is not then:
            return False
    for name, value in zip(state.names, state.values):  # noqa: B905
        if not _is_as(getattr(module, name, None), value):
            return False
    for name in state.methods:  # noqa: SIM110
        if name in module.__dict__:
            return False
    return True
