# SPDX-License-Identifier: MIT
"""Functions that a trace replaces, since no tensor among their arguments tells torch.fx of the call.

torch's factories become nodes if a size is among their arguments. Warnings, and lines for a log, become nodes that say
the same from the same place in the user's code: a text may show sizes, dtypes and devices, see `texts`.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from opswap._torch import tree_leaves

from ..graph.metadata import is_metadata
from ..runtime import purity
from ..runtime.messages import LEVELS, find_class, log_line, warn
from .texts import has_mark

if TYPE_CHECKING:
    from .tracer import Tracer

__all__ = ["Replaced"]

# Their arguments are sizes, which may be proxies.
_FACTORIES = ("empty", "full", "ones", "zeros")
_PLACES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (torch, _FACTORIES),
    (warnings, ("warn",)),
    (logging, tuple(LEVELS)),
    (logging.Logger, tuple(LEVELS)),
)
_PLAIN = (bool, int, float, complex, str, type(None))


class Replaced:
    """What one trace has replaced. Other threads see it too, and their calls are passed on."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._known: dict[tuple[int, str], tuple[Any, str, Any, Any]] = {}

    def meet(self, code: CodeType) -> None:
        """Replace those functions that this code may call, before it runs."""
        for holder, names in _PLACES:
            for name in names:
                if (id(holder), name) not in self._known and (
                    name in code.co_names or name in code.co_consts
                ):
                    stock = vars(holder)[name]
                    made = self._factory(stock) if holder is torch else self._notice(stock, holder)
                    self._known[id(holder), name] = holder, name, stock, made
                    setattr(holder, name, made)

    def restore(self) -> None:
        """Put back what is not patched otherwise meanwhile, which its owner restores."""
        for holder, name, stock, made in self._known.values():
            if vars(holder).get(name) is made:
                setattr(holder, name, stock)

    def _factory(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls become nodes if an argument is a proxy."""

        @wraps(function)
        def record_or_call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._tracer.thread and any(
                isinstance(a, fx.Proxy) for a in tree_leaves((args, kwargs))
            ):
                return self._tracer.create_proxy("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return record_or_call

    def _notice(self, function: Callable[..., Any], holder: Any) -> Callable[..., Any]:
        """The function, whose calls by code of the user become nodes."""

        @wraps(function)
        def record_or_call(*args: Any, **kwargs: Any) -> Any:
            tracer, frame = self._tracer, sys._getframe(1)
            here = threading.get_ident() == tracer.thread and tracer.follower.listens
            if not here or purity.owner_of_frame(frame) != purity.USER:
                return _pass_on(function, *args, **kwargs)
            before = tracer.follower.pause()
            try:
                if holder is warnings:
                    node = self._warning(frame, *args, **kwargs)
                else:
                    node = self._log_line(frame, LEVELS[function.__name__], *args, **kwargs)
            except _UnknownError:
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                name = f"{holder.__name__}.{function.__name__}"
                raise tracer.refuse(f"{name}() is called at {where}, which a capture cannot follow") from None
            finally:
                tracer.follower.go_on(before)
            tracer.create_node("call_function", *node, {})

        return record_or_call

    def _warning(
        self, frame: FrameType, message: Any, category: Any = None, stacklevel: Any = 1, *rest: Any, **options: Any
    ) -> tuple[Any, ...]:  # fmt: skip
        category = UserWarning if category is None else category
        known = type(category) is type and find_class(category.__module__, category.__qualname__) is category
        if rest or options or type(message) is not str or not known or type(stacklevel) is not int:
            raise _UnknownError
        for _ in range(1, stacklevel):
            if frame.f_back is None or purity.owner_of_frame(frame.f_back) != purity.USER:
                raise _UnknownError
            frame = frame.f_back
        module = frame.f_globals.get("__name__")
        if vars(sys.modules.get(module, torch)) is not frame.f_globals:
            raise _UnknownError
        place = frame.f_code.co_filename, frame.f_lineno, module
        (shown,), texts = self._shown((message,))
        return warn, ((category.__module__, category.__qualname__), place, shown, texts)

    def _log_line(self, frame: FrameType, level: int, *args: Any, **options: Any) -> tuple[Any, ...]:
        called = None  # a function of the module, which writes to the root
        if args and isinstance(args[0], logging.Logger):
            log, args = args[0], args[1:]
            called = log.name
            if type(log) is not logging.Logger or logging.getLogger(called) is not log:
                raise _UnknownError
        if options or not args or type(args[0]) is not str:
            raise _UnknownError
        place = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        shown, texts = self._shown(args)
        return log_line, (called, level, place, shown, texts)

    def _shown(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Arguments of a node, and those that are texts that show values, by their places."""
        texts = tuple((i, self._tracer.texts.split(v)) for i, v in enumerate(values) if has_mark(v))
        shown = tuple("" if has_mark(v) else self._tracer.create_arg(v) for v in values)
        if not all(map(_is_shown, tree_leaves(shown))):
            raise _UnknownError
        return shown, texts


def _pass_on(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call the function; the frame of this call and that of its caller are not where the call comes from."""
    if inspect.isbuiltin(function) and len(args) > 2:  # warnings.warn
        return function(*args[:2], max(args[2], 1) + 2, *args[3:], **options)
    return function(*args, **{**options, "stacklevel": max(options.get("stacklevel", 1), 1) + 2})


class _UnknownError(Exception):
    """A call that cannot be written down."""


def _is_shown(value: Any) -> bool:
    """True for plain values, and for what is known of a tensor without its elements."""
    if isinstance(value, fx.Node):
        return is_metadata(value)
    return type(value) in (*_PLAIN, torch.dtype, torch.device, torch.layout) and not has_mark(value)
