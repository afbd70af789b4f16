# SPDX-License-Identifier: MIT
"""Whether a forward that users have set on a module calls the generated one."""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..runtime.instance_forward import Link, generated_forward, overridden
from ..runtime.members import attributes_of, is_plain, static_attribute, with_inner

__all__ = ["bypassed"]

_MANY = 2000  # objects that a forward may refer to
_NOT_FOLLOWED = ("forward", "_opswap_forward", "_opswap_record")


def bypassed(module: nn.Module) -> str:
    """Why calls of a rewritten module do not reach its generated forward; "" if they do.

    A forward on the instance is followed through everything that it refers to. It counts as a wrapper if it refers to
    the generated forward, whether it calls that or not.
    """
    own = vars(module)
    if "forward" not in own:
        return "its new forward was removed"
    if not overridden(module):
        return ""
    return "" if _refers(own["forward"], module) else "its forward was replaced"


def _refers(start: Any, module: nn.Module) -> bool:
    """True if the module's generated forward is reached from this value."""
    generated, seen = generated_forward(module), set()
    waiting = [start]
    while waiting and len(seen) < _MANY:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if value is generated or (isinstance(value, Link) and value.opswap_ref() is module):
            return True
        if not isinstance(value, nn.Module):
            waiting += _parts(value)
        elif value is module:
            waiting += [v for k, v in vars(module).items() if k not in _NOT_FOLLOWED]
    return False  # type(m).forward(m, x) is the stock forward


def _names(code: types.CodeType) -> set[str]:
    """The attributes and global variables that code mentions, also inside of its inner functions."""
    return {name for inner in with_inner(code) for name in inner.co_names}


def _parts(value: Any) -> Iterator[Any]:
    """The objects that a callable or a container refers to."""
    if is_plain(value) or isinstance(value, (Tensor, types.ModuleType, type)):
        return
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, weakref.ref):
        yield value()
    elif isinstance(value, dict):
        yield from list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from list(value)
    else:
        if isinstance(value, partial):
            yield from (value.func, value.args, value.keywords)
        yield from [part for _, part in attributes_of(value)]
        yield static_attribute(type(value), "__call__")


def _parts_of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
