# SPDX-License-Identifier: MIT
"""`check`: watch the memory format of every operator of any steps, forward and backward."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from time import perf_counter_ns
from types import FrameType
from typing import Any

from torch import nn

from opswap._torch import OpOverload
from opswap.finding import Finder, Locator, Origin, short_path
from opswap.finding.mode import FinderMode
from opswap.finding.operators import tensors_in
from opswap.finding.storages import storage_key

from .call import Call, make_call
from .formats import Format, format_of
from .observer import Observer
from .ordinary import NOTHING, Known, ordinary_call
from .report import LayoutReport
from .tally import Tally

__all__ = ["LayoutError", "check"]

_MODES = ("report", "raise")
_MOST_FUNCTIONS = 4096


class LayoutError(RuntimeError):
    """The first loss of the format, under `check(mode="raise")`."""


class check(Finder[LayoutReport]):
    """Watch the memory format of every operator that this thread runs within the context.

        with opswap.layout.check(model) as report:
            model(images).mean().backward()
        print(report)

    Args:
        model: modules and parameters are named by their path in it. Without it they are named by the class of the
            outermost module that is called: "ResNet.layer1.0".
        mode: "report" counts; "raise" stops at the first loss with a LayoutError.
        allow: losses that are known: names of operators ("aten.grid_sampler_2d" or "grid_sampler_2d"), module paths,
            or lines ("net.py:31", or a whole file, "net.py"); each may hold wildcards, as "head.*". They are
            counted, but are not findings and raise nothing.
    Returns: as a context manager, the `LayoutReport`, which can be read inside and after the context.
    Raises: TypeError for a model that is not a module or an allow-list that is not of strings; ValueError for a mode
        that does not exist; RuntimeError if entered twice at the same time. Within the context, LayoutError (see mode).

    It changes no result, needs no hooks, and ends with the context, also after an error. opswap's kernels for 1x1 and
    depthwise convolutions are not operators of torch's dispatcher: torch's convolutions run in their place. Contexts
    nest; each has its own report. While it is in force, torch.compile runs the Python code that it would compile.
    """

    called = "check"

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        mode: str = "report",
        allow: Iterable[str] = (),
    ) -> None:
        super().__init__(model, allow)
        if mode not in _MODES:
            raise ValueError(f"check: mode must be one of {_MODES}, got {mode!r}")
        self._raises = mode == "raise"

    def _start(self, stack: contextlib.ExitStack) -> LayoutReport:
        locator = Locator(self._model)
        observer = Observer(locator, self._is_allowed, _raise if self._raises else _pass_on)
        report = LayoutReport(observer, locator)
        stack.enter_context(report.hidden)
        stack.enter_context(_Mode(observer, locator, report, self._after_operator))
        return report


def _pass_on(tally: Tally, shape: tuple[int, ...]) -> None:
    """A loss that is only counted."""


def _raise(tally: Tally, shape: tuple[int, ...]) -> None:
    """Raises: LayoutError, at the operator that lost the format."""
    origin = tally.origin
    where = f"{short_path(origin.file)}:{origin.line}" if origin.file else "no Python line"
    module = f", module {origin.module}" if origin.module else ""
    raise LayoutError(
        f"{tally.op} lost channels_last in the {origin.phase} at {where}{module}: {shape}; {tally.hint}"
    )


class _Mode(FinderMode):
    """Calls every operator as it is, and shows it to the observer afterwards."""

    _by_parts = True

    def __init__(
        self,
        observer: Observer,
        locator: Locator,
        report: LayoutReport,
        after_operator: Callable[[bool], None] | None,
    ) -> None:
        super().__init__(after_operator)
        self._observer = observer
        self._locator = locator
        self._report = report
        self._lock = threading.Lock()  # CUDA runs a backward in one thread per device
        self._known: dict[int, Known] = {}  # by id: the hash of an operator is a Python function

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = self._known.get(id(func)) or self._know(func)
        start = perf_counter_ns()
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            self._refused(known.name, args, error, sys._getframe(1).f_back)
            raise
        elapsed = perf_counter_ns() - start
        new_node = threading.get_ident() == self._thread and self._locator.new_node()
        origin = (
            None if known.skipped else self._look(known, args, kwargs, out, elapsed, sys._getframe(1).f_back)
        )
        if new_node:
            self._locator.remember(origin or self._locator.locate(sys._getframe(1).f_back))
        return out

    def _look(
        self,
        known: Known,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        nanoseconds: int,
        frame: FrameType | None,
    ) -> Origin | None:
        """Show a call to the observer; its origin, None if it has nothing to do with images."""
        observer = self._observer
        ordinary = ordinary_call(known, args, out, observer.marks) if known.ordinary and not kwargs else None
        if ordinary is NOTHING:
            return None
        call: Call | None = None
        if ordinary is None:
            call = make_call(known.name, known.func, args, kwargs, out, nanoseconds, observer.marks)
            if call is None:
                return None
        origin = self._locator.locate(frame)
        with self._lock:
            if call is not None:
                observer.observe(call, origin)
            elif ordinary is not None:
                observer.observe_ordinary(known.name, origin, *ordinary, nanoseconds)
            self._report.hidden.look_around(origin, frame)
        return origin

    def _know(self, func: Any) -> Known:
        if len(self._known) >= _MOST_FUNCTIONS:
            self._known.clear()
        known = self._known[id(func)] = Known(func, isinstance(func, OpOverload))
        return known

    def _refused(self, name: str, args: tuple[Any, ...], error: Exception, frame: Any) -> None:
        if not self._observer.is_refusal(error):
            return
        for tensor in tensors_in(args):
            if tensor.is_nested:
                continue
            known = self._observer.marks.get(storage_key(tensor))
            if format_of(tensor) is Format.LAST or known is not None:
                with self._lock:
                    origin = self._locator.locate(frame)
                    self._observer.refuse(name, origin, tuple(tensor.shape), error)
                return
