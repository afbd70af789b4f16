# SPDX-License-Identifier: MIT
"""Runs of a copy of a model leave what its code writes to outside of the model as it was."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

from ..runtime.members import owner_of_class
from ..runtime.purity import USER
from .unseen import Search, own_code
from .written import Ledger, Written

__all__ = ["DryRuns"]


class DryRuns:
    """Runs of copies of one model, or of some of its modules, as for the sizes of its tensors or for times.

    Global variables, closures, attributes of classes and objects, and elements of containers that the model's code
    reaches by name are restored; elements of tensors are not.
    """

    def __init__(self, *modules: nn.Module) -> None:
        below = dict.fromkeys(m for module in modules for m in module.modules())
        self._found = Search(own_code(below), ("forward",))
        found = self._found
        self._writes = found.anything or found.elements or bool(found.stored) or bool(found.cells)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo what the runs in this context write."""
        if not self._writes:
            yield
            return
        found, alone = self._found, threading.active_count() == 1
        stored = None if found.anything else frozenset({*found.stored, "cell_contents"})
        ledger = self._ledger(alone)
        try:
            yield
        finally:
            ledger.undo(Written(alone, frozenset(), stored, found.elements or found.anything, ()))

    def _ledger(self, alone: bool) -> Ledger:
        """alone: no other thread may run the model itself meanwhile, and write to its modules."""
        ledger, holders = Ledger(), dict[int, Any]()
        for value in self._found.seen.values():
            if isinstance(value, FunctionType):
                module = sys.modules.get(value.__module__ or "")
                if getattr(module, "__dict__", None) is value.__globals__:
                    holders[id(module)] = module
                for cell in value.__closure__ or ():
                    if id(cell) in self._found.cells:
                        ledger.field(cell, "cell_contents")
            elif isinstance(value, (ModuleType, type)):
                holders[id(value)] = value
            else:
                holders.update((id(c), c) for c in type(value).__mro__)
                if not isinstance(value, (nn.Module, Tensor)):
                    ledger.copy(value)
                elif alone and isinstance(value, nn.Module):
                    holders[id(value)] = value
        for holder in holders.values():
            if isinstance(holder, (ModuleType, nn.Module)) or owner_of_class(holder) == USER:
                if self._found.anything:
                    ledger.scope(holder)
                    continue
                for name in self._found.stored:
                    ledger.field(holder, name)
        return ledger
