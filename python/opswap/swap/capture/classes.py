# SPDX-License-Identifier: MIT
"""What code reads of the class of a tensor while a forward is traced.

A stand-in presents itself as a plain tensor. If every tensor answers alike, as for isinstance(x, (Tensor, list)),
nothing else is needed. If a subclass may answer otherwise, the captured path is bound to inputs that are plain
tensors. Checks that a stand-in cannot answer, such as those in C code, are refused.
"""

from __future__ import annotations

import builtins
import os
from abc import ABCMeta
from bisect import bisect_right
from functools import lru_cache
from inspect import getattr_static
from types import CodeType, FrameType, FunctionType, ModuleType, UnionType
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx, nn

from opswap._torch import TensorBase

from ..graph.aliasing import returns_tensor
from ..graph.calls import graph_kinds
from ..graph.metadata import ancestors
from ..runtime.guards import is_plain_tensor
from ..runtime.members import has_own_look_up, static_base
from .bytecode import class_reads
from .identity import Step, steps_of
from .stand_in import StandIn

if TYPE_CHECKING:
    from .tracer import Tracer

__all__ = ["answer", "check"]

_EINOPS = f"{os.sep}einops{os.sep}"
_UNKNOWN = object()
_CHECK = "__instancecheck__"
_METHOD = type.__dict__[_CHECK]
_NO_ARGUMENTS = frozenset({"PRECALL", "PUSH_NULL"})
_CALLS = frozenset({"CALL", "CALL_FUNCTION", "CALL_FUNCTION_EX", "CALL_KW", "CALL_METHOD"})
# Functions in C that call what they are given, as isinstance by a map.
_CALL_OTHERS = frozenset({"_functools", "builtins", "functools", "itertools"})


def answer(tracer: Tracer, obj: fx.Proxy, frame: FrameType) -> type:
    """The class of a stand-in for code in this frame that reads it.

    Functions in C must not see the class Tensor: they would use a stand-in of that class as a tensor's memory.
    """
    code = frame.f_code
    if _EINOPS in code.co_filename:
        return type(obj)
    kinds: tuple[Any, ...] | None = None
    called = tracer.follower.called_by(frame)
    name = getattr(called, "__name__", "")
    if called is None:
        if frame.f_lasti not in class_reads(code):
            if _at(code, frame.f_lasti).opname in _CALLS:
                raise _refuse(tracer, "code in C reads the class of a tensor")
            return type(obj)
    elif called is isinstance:
        kinds = _named(frame)
        if kinds is None:
            raise _refuse(tracer, "isinstance() checks for classes that a capture cannot see")
        if _is_size(obj.node) and all(issubclass(k, TensorBase) for k in kinds):
            return type(obj)
    elif name == "_abc_instancecheck":
        kinds = _asked(frame)
    elif name == _CHECK or getattr(called, "__module__", None) in _CALL_OTHERS:
        if called is not getattr and called is not hasattr:
            raise _refuse(tracer, "code in C reads the class of a tensor")
    else:
        return type(obj)
    _bind(tracer, obj.node, kinds)
    return Tensor


def check(tracer: Tracer, frame: FrameType) -> None:
    """Inspect a check before it is answered past `answer`, by the class that a stand-in really has.

    Args: frame: it calls isinstance, or is of a method __instancecheck__ of torch or of a library.
    """
    if frame.f_code.co_name != _CHECK:
        named = [k for k in _named(frame) or () if isinstance(k, type) and k is not object]
        if any(issubclass(StandIn, k) for k in named if type(k) is type):
            raise _refuse(tracer, "code checks whether a value is a proxy")
        return
    cls, obj = (frame.f_locals.get(name) for name in frame.f_code.co_varnames[:2])
    if not issubclass(type(obj), fx.Proxy):
        return
    kinds = _asked(frame)
    abstract = frame.f_code is ABCMeta.__instancecheck__.__code__
    known = cls is nn.Parameter or (abstract and (issubclass(Tensor, cls) or not issubclass(StandIn, cls)))
    if not known and not _is_certain(kinds):
        raise _refuse(tracer, f"code checks whether a tensor is a {getattr(cls, '__qualname__', cls)}")
    _bind(tracer, obj.node, kinds)


def _refuse(tracer: Tracer, what: str) -> Exception:
    return tracer.refuse(f"{what} at {tracer.inspect_frames()}")


def _asked(frame: FrameType) -> tuple[Any, ...]:
    """The classes in the isinstance call to which the method __instancecheck__ in this frame belongs."""
    kinds = _named(frame.f_back) if frame.f_back is not None else None
    return kinds or (frame.f_locals.get(frame.f_code.co_varnames[0]),)


def _bind(tracer: Tracer, node: fx.Node, kinds: tuple[Any, ...] | None) -> None:
    """Refuse an isinstance check that a plain tensor may answer otherwise; kinds: the classes, None if unknown."""
    module = node.meta.get("module")
    is_tensor = node.op == "placeholder" or (module is not None and returns_tensor(module))
    if not is_tensor and graph_kinds(node.graph)[node] != "tensor":
        raise _refuse(tracer, "code reads the type of a result")
    for kind in kinds or ():
        method = getattr_static(type(kind), _CHECK)
        if method is not _METHOD and not isinstance(method, FunctionType):
            name = f"{kind.__module__}.{kind.__qualname__}"
            raise _refuse(tracer, f"code checks whether a tensor is a {name}")
    if kinds is not None and _is_certain(kinds):
        return
    if node.op != "placeholder":
        plain = all(type(t) in (Tensor, nn.Parameter) for t in _tensors(tracer.root))
        if kinds is None or any(issubclass(k, Tensor) for k in kinds) or not plain:
            raise _refuse(tracer, "code reads the class of a result")
    known = ancestors([node])
    for source in [n for n in node.graph.nodes if n.op == "placeholder" and n in known]:
        tracer.bind(source, is_plain_tensor)


def _is_size(node: fx.Node) -> bool:
    """True for what a size yields, ints and tuples of them, which are no tensors."""
    return node.op != "placeholder" and graph_kinds(node.graph)[node] == "size"


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _is_certain(kinds: tuple[Any, ...]) -> bool:
    """True if these classes contain tensors of every class, or of no class."""
    return any(k in (Tensor, TensorBase) for k in kinds) or all(map(_excludes_tensors, kinds))


def _excludes_tensors(cls: type) -> bool:
    """True for a class of which no subclass is a tensor: modules, and those of another layout in C, such as list."""
    if type(cls) is not type:
        return False
    base = static_base(cls)
    final = not base.__flags__ & (1 << 10)  # Py_TPFLAGS_BASETYPE
    return issubclass(cls, nn.Module) or final or base.__basicsize__ > object.__basicsize__


# --- the classes that a call of isinstance names ---------------------------------------------------------------------


def _named(frame: FrameType) -> tuple[Any, ...] | None:
    """The classes in the isinstance call that the frame executes; None if the byte code does not show them."""
    steps, offsets = _steps(frame.f_code)
    place = bisect_right(offsets, frame.f_lasti) - 1
    if place < 0 or steps[place].opname not in ("CALL", "CALL_FUNCTION") or steps[place].arg != 2:
        return None
    place -= 1
    while place > 0 and steps[place].opname in _NO_ARGUMENTS:
        place -= 1
    value, _ = _value(frame, steps, place)
    return None if value is _UNKNOWN else _flat(value)


def _at(code: CodeType, last: int) -> Step:
    steps, offsets = _steps(code)
    return steps[bisect_right(offsets, last) - 1]


@lru_cache(maxsize=1024)
def _steps(code: CodeType) -> tuple[list[Step], list[int]]:
    steps = steps_of(code)
    return steps, [s.offset for s in steps]


def _flat(value: Any) -> tuple[Any, ...] | None:
    if isinstance(value, UnionType):
        value = value.__args__
    if isinstance(value, type):
        return (value,)
    parts = [_flat(v) for v in value] if type(value) is tuple else [None]
    return None if None in parts else tuple(k for part in parts for k in part or ())


def _value(frame: FrameType, steps: list[Step], place: int) -> tuple[Any, int]:
    """The value of the expression that ends here, and the end of the instruction before the expression."""
    step = steps[place] if place >= 0 else None
    if step is None or step.target:
        return _UNKNOWN, place
    if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
        known = frame.f_globals.get(step.argval, _UNKNOWN)
        return vars(builtins).get(step.argval, _UNKNOWN) if known is _UNKNOWN else known, place - 1
    if step.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
        return frame.f_locals.get(step.argval, _UNKNOWN), place - 1
    if step.opname == "LOAD_CONST":
        return step.argval, place - 1
    if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        holder, place = _value(frame, steps, place - 1)
        return _attribute(holder, step.argval), place
    count = step.arg if step.opname == "BUILD_TUPLE" else 2 if step.argval == "|" else None
    if count is None:
        return _UNKNOWN, place
    parts: list[Any] = []
    place -= 1
    for _ in range(count):
        part, place = _value(frame, steps, place)
        parts.insert(0, part)
    return _UNKNOWN if any(p is _UNKNOWN for p in parts) else tuple(parts), place


def _attribute(holder: Any, name: str) -> Any:
    """An attribute as it is stored, without running code."""
    if holder is _UNKNOWN or has_own_look_up(type(holder)):
        return _UNKNOWN
    if isinstance(holder, ModuleType):
        return vars(holder).get(name, _UNKNOWN)
    return getattr_static(holder, name, _UNKNOWN)
