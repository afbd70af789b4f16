# SPDX-License-Identifier: MIT
"""Turn one module's forward into a graph, its children as leaves, and refuse where the graph would lie.

A symbolic trace runs the forward once and writes down what it does to its inputs. What the forward asks of
Python itself (the training flag, a type, a random number, the gradient mode) is answered once and baked in.
Each of those questions is noticed here and refused, so that a capture that succeeds means what the forward
means.
"""

from __future__ import annotations

import dis
import inspect
import operator
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any

import torch
from torch import fx, nn

from .runtime import hooked

__all__ = ["Capture", "CaptureError", "capture", "class_name"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
# torch's own code through which a call reaches a proxy unchanged; a trace would drop what the rest of torch
# adds around a call, such as a checkpoint, a custom gradient or a context.
_TRANSPARENT = (
    "_jit_internal.py",
    "_tensor.py",
    "functional.py",
    "fx" + os.sep,
    "nn" + os.sep,
    "overrides.py",
)
# The frame below the user's own; torch.compile wraps the method once it has been imported.
_TRACE = inspect.unwrap(fx.Tracer.trace).__code__
_BAKED = {
    "callable",
    "hasattr",
    "is_autocast_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "is_tensor",
    "isinstance",
    "issubclass",
    "type",
}


_TRACING = threading.RLock()  # a trace patches torch.nn.Module for all threads


class CaptureError(Exception):
    """A forward that cannot be written as a graph; the message says why."""


@dataclass(frozen=True)
class Capture:
    """The forward of `root` as a graph.

    Every node's meta has "owner", the path below root of the module whose forward made it, and "source", the
    "file:line" that did, or that module's class where it is one of torch's own; that of a module's call also
    has "module". `opened` are the modules whose calls are inlined; `arguments` are the captured parameters of
    the forward, the others kept their defaults.
    """

    root: nn.Module
    graph: fx.Graph
    opened: tuple[nn.Module, ...]
    arguments: tuple[str, ...]


def capture(root: nn.Module, opened: Sequence[nn.Module] = ()) -> Capture:
    """Capture `root.forward`, inlining the calls of `opened`; leaves no trace on any module.

    Raises: CaptureError, for whatever reason the forward has no faithful graph.
    """
    with _TRACING:
        return _capture_in_both_modes(root, opened)


def _capture_in_both_modes(root: nn.Module, opened: Sequence[nn.Module]) -> Capture:
    modules = (root, *opened)
    flags = [m.training for m in modules]
    captures = []
    made: list[nn.Module] = []
    try:
        for training in (True, False):
            for m in modules:
                m.__dict__["training"] = training
            captures.append(_capture_once(root, opened, made))
    finally:
        for m, training in zip(modules, flags, strict=True):
            m.__dict__["training"] = training
    first, second = (_fingerprint(c.graph) for c in captures)
    if first != second:
        raise CaptureError("forward differs between train() and eval()")
    return captures[0]


def _fingerprint(graph: fx.Graph) -> list[tuple[Any, ...]]:
    return [(n.op, n.target, str(n.args), str(n.kwargs)) for n in graph.nodes]


def _capture_once(root: nn.Module, opened: Sequence[nn.Module], made: list[nn.Module]) -> Capture:
    tracer = _Tracer(opened, made)
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()), _undone((root, *opened)):
            graph = tracer.trace(root)
    except CaptureError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise tracer.refusal or CaptureError(f"{type(error).__name__}: {lines[0]}") from error
    if tracer.refusal is not None:
        raise tracer.refusal
    return Capture(root, graph, tuple(opened), tracer.arguments)


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def __init__(self, opened: Sequence[nn.Module], made: list[nn.Module]) -> None:
        super().__init__()
        self.foreign = tuple(made)  # what an earlier trace met was not made in this one
        self.made = made
        self.opened = {id(m) for m in opened}
        self.owners = [""]
        self.arguments: tuple[str, ...] = ()
        self.refusal: CaptureError | None = None
        self.modes = _modes()
        self.thread = threading.get_ident()

    def refuse(self, reason: str) -> CaptureError:
        """Remember the first refusal: the forward itself may catch the exception."""
        self.refusal = self.refusal or CaptureError(reason)
        return self.refusal

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return id(m) not in self.opened

    def is_passing(self, m: nn.Module) -> bool:
        """True for a module of torch without state that the forward makes for itself, as a function of sorts."""
        if any(m is other for other in self.foreign) or any(m is own for own in self.root.modules()):
            return False
        state = (*m.parameters(), *m.buffers(), *m.children())
        if state or hooked(m) or not type(m).__module__.startswith("torch.nn."):
            return False
        self.made.append(m)
        return True

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if threading.get_ident() != self.thread or self.is_passing(m):
            return forward(*args, **kwargs)
        self.owners.append(self.path_of_module(m))
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self.owners.pop()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Proxies for the parameters without a default; the others keep theirs, which the caller guards."""
        required = []
        for p in list(inspect.signature(root_fn).parameters.values())[1:]:
            if p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            if p.kind is p.KEYWORD_ONLY:
                raise self.refuse(f"forward has the required keyword-only argument {p.name!r}")
            required.append(p.name)
        self.arguments = tuple(required)
        return root_fn, [self.root, *(self.create_proxy("placeholder", n, (), {}) for n in required)]

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self.modes:
            raise self.refuse("forward changes the gradient or autocast mode")
        source = self._inspect_frames() or class_name(self.root.get_submodule(self.owners[-1]))
        node = super().create_node(kind, target, *args, **kwargs)
        # A leaf's call belongs to the module whose forward makes it.
        node.meta["owner"] = self.owners[-2] if kind == "call_module" else self.owners[-1]
        node.meta["source"] = source
        if kind == "call_module":
            node.meta["module"] = self.root.get_submodule(target)
        return node

    def _inspect_frames(self) -> str:
        """The innermost line of user code; refuses code that a trace cannot follow."""
        source = ""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code is not _TRACE:
            code, name = frame.f_code, frame.f_code.co_filename
            if name.startswith(_TORCH):
                if not name[len(_TORCH) :].startswith(_TRANSPARENT):
                    raise self.refuse(f"forward runs through {os.path.relpath(name, _TORCH + os.pardir)}")
            elif not name.startswith(_HERE):
                source = source or f"{name}:{frame.f_lineno}"
                reason = _unfaithful(code)
                if reason:
                    raise self.refuse(reason)
            frame = frame.f_back
        return source

    def to_bool(self, obj: fx.Proxy) -> bool:
        raise self.refuse(f"control flow depends on a tensor or its size at {self._inspect_frames()}")

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        raise self.refuse(f"a tensor or its size is iterated over at {self._inspect_frames()}")


def class_name(module: nn.Module) -> str:
    """The module's class by its full name."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _modes() -> tuple[bool, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


@lru_cache(maxsize=1024)
def _unfaithful(code: CodeType) -> str | None:
    """Why a trace of this code may mean something else than the code."""
    where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    asked = sorted(_BAKED.intersection(code.co_names))
    if asked:
        return f"{code.co_name} ({where}) asks for {asked[0]}(), which a capture cannot follow"
    for op in dis.get_instructions(code):
        if op.opname in ("BEFORE_WITH", "SETUP_WITH") or (op.opname, op.argrepr) == (
            "LOAD_SPECIAL",
            "__enter__",
        ):
            return f"{code.co_name} ({where}) has a with statement, which a capture does not record"
    return None


@contextmanager
def _undone(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Undo what a traced forward writes to its modules or draws from the random generators, and refuse it."""
    before = [(m.__dict__, _shallow(m.__dict__)) for m in modules]
    drawn = random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        changed = sorted({k for now, then in before for k in _restore(now, then)})
        python, native = drawn
        random_used = random.getstate() != python or not torch.equal(torch.get_rng_state(), native)
        random.setstate(python)
        torch.set_rng_state(native)
    if changed:
        raise CaptureError(f"forward writes to the module's attribute {changed[0]!r}")
    if random_used:
        raise CaptureError("forward draws random numbers while it is traced")


def _shallow(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Every attribute, and a copy of those that are containers."""
    return {k: (v, v.copy() if isinstance(v, (list, dict, set)) else None) for k, v in attributes.items()}


def _same(now: Any, then: Any) -> bool:
    if isinstance(now, dict):
        return list(now) == list(then) and all(map(operator.is_, now.values(), then.values()))
    if isinstance(now, list):
        return len(now) == len(then) and all(map(operator.is_, now, then))
    return now == then


def _restore(now: dict[str, Any], then: dict[str, tuple[Any, Any]]) -> list[str]:
    """Bring attributes back to what `_shallow` saw; returns the names of those that had changed."""
    changed = [k for k in now if k not in then]
    for name in changed:
        del now[name]
    for name, (value, content) in then.items():
        if now.get(name, now) is not value:
            changed.append(name)
            now[name] = value
        if content is not None and not _same(value, content):
            changed.append(name)
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)
    return changed
