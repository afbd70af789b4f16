# SPDX-License-Identifier: MIT
"""What is known of the memory behind tensors, by storage, for as long as the storage lives."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Storages", "storage_key"]

MarkT = TypeVar("MarkT")

_FEWEST_BEFORE_PRUNING = 256


def storage_key(tensor: Tensor) -> int:
    """Identity of the memory behind a tensor, for as long as the memory or a `StorageWeakRef` to it exists.

    0 if it has none of its own, such as a sparse tensor.
    """
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        return 0


class Storages(Generic[MarkT]):
    """A mark for each storage. Keeps no memory alive; forgets freed storages, so that its size follows the model's."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[StorageWeakRef, MarkT]] = {}
        self._limit = _FEWEST_BEFORE_PRUNING

    def __bool__(self) -> bool:
        return bool(self._marks)

    def __len__(self) -> int:
        return len(self._marks)

    def get(self, key: int) -> MarkT | None:
        """The mark of a storage. The weak reference keeps the address from being given to another one."""
        try:
            return self._marks[key][1]
        except KeyError:
            return None

    def set(self, tensor: Tensor, mark: MarkT) -> None:
        """Nothing is known of a tensor without a storage."""
        key = storage_key(tensor)
        if not key:
            return
        if len(self._marks) >= self._limit:
            self.prune()
        self._marks[key] = (StorageWeakRef(tensor.untyped_storage()), mark)

    def drop(self, key: int) -> None:
        self._marks.pop(key, None)

    def marks(self) -> list[MarkT]:
        """Of the storages that live."""
        return [mark for reference, mark in self._marks.values() if not reference.expired()]

    def prune(self) -> None:
        """Forget the storages that were freed; done by itself whenever their number may have doubled."""
        live: dict[int, Any] = {key: entry for key, entry in self._marks.items() if not entry[0].expired()}
        self._marks = live
        self._limit = max(_FEWEST_BEFORE_PRUNING, 2 * len(live))
