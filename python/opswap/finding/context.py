# SPDX-License-Identifier: MIT
"""What every finder is as a context: its model, its allow-list, when it is in force; and what it could not see."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from types import FrameType, TracebackType
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn

from opswap._torch import current_node

from .source import Origin, short_path

__all__ = ["Finder", "Hidden"]

ReportT = TypeVar("ReportT")

_COMPILED = "compile_wrapper"
_MOST_THREADS = 8


class _Uncompiled:
    """Nothing is compiled while a thread is inside.

    torch's stance belongs to the whole process: what the first thread finds is put back by the last one to leave.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = 0
        self._stance: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._stance = torch.compiler.set_stance("force_eager")
            self._inside += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._stance.__exit__(*error)


_uncompiled = _Uncompiled()


class _Started:
    """Names of the threads that start while any thread is inside, for everybody who is.

    `threading` calls its profile function at the first event of every thread that it starts; it is put back there.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._watchers: list[Hidden] = []
        self._before: Any = None

    def add(self, watcher: Hidden) -> None:
        with self._lock:
            if not self._watchers:
                self._before = threading.getprofile()
                threading.setprofile(self._starts)
            self._watchers.append(watcher)

    def remove(self, watcher: Hidden) -> None:
        with self._lock:
            self._watchers.remove(watcher)
            if not self._watchers and threading.getprofile() == self._starts:
                threading.setprofile(self._before)

    def _starts(self, frame: FrameType, event: str, argument: Any) -> None:
        sys.setprofile(self._before)
        if self._before is not None:
            self._before(frame, event, argument)
        for watcher in tuple(self._watchers):
            watcher.thread_started(threading.current_thread().name)


_started = _Started()


class Finder(Generic[ReportT]):
    """Base of the finders: a context manager that watches the calling thread and returns its report.

    A subclass sets `called`, the name in its messages, and enters what watches in `_start`.

    Args: model: modules and parameters are named by their path in it, or, if None, by the class of the outermost
        module that is called. allow: names of operators ("aten.index" or "index"), module paths, or lines
        ("net.py:31", or a whole file), each with wildcards: findings that are known.
    Raises: TypeError for a model that is not a module, or an allow-list that is not of strings. RuntimeError on
        entering if the context is in force already; on leaving in another thread than the one that entered, in which
        it stays in force and can still be left.
    """

    called: ClassVar[str] = ""

    def __init__(self, model: nn.Module | None, allow: Iterable[str]) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(
                f"{self.called}: model must be a torch.nn.Module or None, got {type(model).__name__}"
            )
        if isinstance(allow, str):
            raise TypeError(
                f"{self.called}: allow must be several strings, such as ({allow!r},), got one string {allow!r}"
            )
        self._model, patterns = model, tuple(allow)
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise TypeError(f"{self.called}: allow must hold strings, got {pattern!r}")
        self._is_allowed = _Allowed(patterns)
        # Called after every operator with whether it ran inside a backward.
        self._after_operator: Callable[[bool], None] | None = None
        self._stack: contextlib.ExitStack | None = None
        self._thread = threading.current_thread()

    def __enter__(self) -> ReportT:
        if self._stack is not None:
            raise RuntimeError(
                f"{self.called}: this context is in force already; make another one to nest it"
            )
        with contextlib.ExitStack() as stack:
            stack.enter_context(_uncompiled)
            report = self._start(stack)
            self._stack, self._thread = stack.pop_all(), threading.current_thread()
        return report

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        here = threading.current_thread()
        if self._stack is not None and here is not self._thread:
            raise RuntimeError(
                f"{self.called}: this context was entered in thread {self._thread.name!r} and cannot be left in "
                f"{here.name!r}; leave it in the thread that entered it"
            )
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.__exit__(kind, error, traceback)

    def _start(self, stack: contextlib.ExitStack) -> ReportT:
        """Enter what watches; `stack` ends it."""
        raise NotImplementedError


class _Allowed:
    """Says if an allow-list names an operator, a module or a line. A report keeps it, and with it no model."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns

    def __call__(self, op: str, origin: Origin) -> bool:
        if not self._patterns:
            return False
        names = {op, op.rpartition(".")[2], origin.module}
        if origin.file:
            short = short_path(origin.file)
            for file in (origin.file, short, short.rpartition("/")[2]):
                names |= {file, f"{file}:{origin.line}"}
        return any(fnmatchcase(name, pattern) for pattern in self._patterns for name in names if name)


class Hidden:
    """Notes on what a finder cannot see: compiled and scripted code, and, as a context, threads that start within.

    Args: compiled: a note about torch.compile's code, which runs uncompiled meanwhile.
    """

    def __init__(self, compiled: str) -> None:
        self._compiled = compiled
        self._seen: set[Origin] = set()
        self._notes: dict[str, None] = {}
        self._threads: list[str] = []
        self._more_threads = 0

    def __enter__(self) -> None:
        _started.add(self)

    def __exit__(self, *error: Any) -> None:
        _started.remove(self)

    @property
    def notes(self) -> list[str]:
        """In the order in which they were made."""
        notes = list(self._notes)
        if self._threads:
            more = f" and {self._more_threads} more" if self._more_threads else ""
            notes.append(
                f"threads started meanwhile are not watched: {', '.join(sorted(self._threads))}{more}"
            )
        return notes

    def thread_started(self, name: str) -> None:
        """A thread began while the finder was in force; a few names are kept."""
        if name in self._threads:
            return
        if len(self._threads) < _MOST_THREADS:
            self._threads.append(name)
        else:
            self._more_threads += 1

    def look_around(self, origin: Origin, frame: FrameType | None) -> None:
        """At the first operator of a line: note what of its surroundings hides operators."""
        if origin in self._seen:
            return
        self._seen.add(origin)
        while frame is not None:
            if frame.f_code.co_name == _COMPILED and "eval_frame" in frame.f_code.co_filename:
                self._note(f"torch.compile was called: the Python code ran uncompiled; {self._compiled}")
            if frame.f_code is nn.Module._call_impl.__code__:
                module = frame.f_locals["self"]
                if isinstance(module, torch.jit.ScriptModule):
                    self._note(
                        f"{type(module).__name__} is scripted: its operators are shown at the line that calls it, "
                        "and fused ones not at all"
                    )
            frame = frame.f_back
        node: Any = current_node()
        if node is not None and node.name().startswith("CompiledFunction"):
            self._note(
                "a backward was compiled before the context began: only calls that its code makes to torch's "
                "operators are seen, at the line of the forward's call"
            )

    def _note(self, text: str) -> None:
        self._notes[text] = None
