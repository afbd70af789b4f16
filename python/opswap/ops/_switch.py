# SPDX-License-Identifier: MIT
"""disabled(): within it, torch's own code runs in place of opswap's, in one thread."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Any, TypeVar

import torch

from opswap._torch import graph_task

__all__ = ["active", "disabled", "disabled_here"]

_F = TypeVar("_F", bound=Callable[..., Any])


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.tasks: list[int] = []


_compiling = torch.compiler.is_dynamo_compiling

# One entry for each context of any thread, `force_reference` included. Code that runs on every call looks at this list
# alone while it is empty.
active: list[object] = []
_own = _OfThread()


class disabled(ContextDecorator):
    """Run torch's own code in place of opswap's: `with opswap.disabled():`, or `@opswap.disabled()`.

    Inside, each swapped module runs its original forward, and `opswap.functional` and the modules of `opswap.nn` call
    torch's operators. The model stays swapped: parameters, hooks and memory format do not change, and merged branches
    stay merged. Outputs made inside have torch's autograd graph.

    - It belongs to the thread that enters it, as torch.no_grad does. Other threads, and the threads that
      torch.nn.DataParallel starts, are not affected. A process that is forked inside, such as a worker of a DataLoader,
      starts inside; a spawned one does not.
    - A backward runs what the forward recorded, wherever it is called. Inside torch.utils.checkpoint the forward is
      run again by the backward: enter the context inside the function that is checkpointed.
    - A swapped model compiled by torch.compile is traced again when the context is entered for the first time, in
      smaller graphs. With fullgraph=True that raises torch's error. A graph that was rewritten by
      `backend="opswap"` and compiled by inductor keeps its operators, which run torch's code.

    It nests, is left by exceptions too, and one object can be used several times.

    Raises: TypeError as a decorator of a generator or coroutine function, whose body runs outside of the call.
    """

    def __init__(self) -> None:
        self._entered: list[tuple[list[int], object]] = []

    def __enter__(self) -> None:
        token, tasks = object(), _own.tasks
        tasks.append(graph_task())
        active.append(token)
        self._entered.append((tasks, token))

    def __exit__(self, *error: object) -> None:
        tasks, token = self._entered.pop()
        active.remove(token)
        tasks.pop()

    def _recreate_cm(self) -> disabled:
        return disabled()

    def __call__(self, func: _F) -> _F:
        kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        if any(is_kind(func) for is_kind in kinds):
            raise TypeError(
                f"disabled: {func.__qualname__} is not a plain function; use the context inside it"
            )
        return super().__call__(func)


def disabled_here() -> bool:
    """True inside of `disabled()` in this thread.

    A context that was entered outside of a backward does not reach into it: the forward decided.
    """
    if _compiling():  # traced: the list of the thread that calls the compiled code becomes a guard
        return len(_own.tasks) > 0
    return graph_task() in _own.tasks
