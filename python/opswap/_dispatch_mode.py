"""Dispatch modes that several threads can enter at once.

torch keeps in flags of the whole process whether any dispatch mode is entered. Each mode remembers the flags on entry
and puts them back on exit, which is right for modes nested in one thread. When two threads overlap, and the one that
came first also leaves first, the other one puts back "a mode is entered" for good, and from then on torch.compile
skips every function without a word.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from opswap import _torch

_lock = threading.RLock()
_entered: list[DispatchMode] = []  # by all threads, the oldest first


class DispatchMode(_torch.DispatchMode):
    """torch's TorchDispatchMode. An object is entered by one thread at a time, and not twice."""

    def __enter__(self) -> Any:
        with _lock:
            entered = super().__enter__()
            _entered.append(self)
        return entered

    def __exit__(self, *error: Any) -> Any:
        with _lock:
            position = _entered.index(self)
            if position + 1 < len(_entered):
                _swap_flags(self, _entered[position + 1])
            del _entered[position]
            return super().__exit__(*error)


def _swap_flags(leaving: DispatchMode, later: DispatchMode) -> None:
    """Let the mode that was entered later put back what the leaving one found, and the other way round."""
    for name, flags in vars(leaving).items():
        others = vars(later).get(name)
        if isinstance(flags, deque) and isinstance(others, deque) and flags and others:
            flags[-1], others[-1] = others[-1], flags[-1]
