# SPDX-License-Identifier: MIT
"""What is known of the memory behind tensors: descends from a channels_last image, lost the format, was converted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .formats import Format
from .tally import Tally

__all__ = ["Conversion", "Mark", "Marks", "storage_key"]

_FEWEST_BEFORE_PRUNING = 256


@dataclass(slots=True)
class Conversion:
    """A copy that did nothing but change the format; needless if the next operator changes it back.

    tally: where the copy was counted. before: the format of its source. bytes: what it moved.
    """

    tally: Tally
    before: Format
    bytes: int
    nanoseconds: int


@dataclass(slots=True)
class Mark:
    """One storage that holds, or was computed from, what was a channels_last image.

    spatial: sizes after the channels of that image, () if a reduction left one pixel: a 4-D tensor of these sizes
        is an image again, any other (scores of an attention, windows) is not.
    candidate: the operator that moved the channels away from the innermost place; the culprit if an image in
        contiguous format comes of it. surmised: it computed something of another shape, so that a copy behind it that
        moves the channels is the better candidate.
    unproven: that a channels_last image comes into it is not known; a reader with such an operand would prove it.
    loss: the culprit, once it is known. image: written as an image.
    conversion: the copy that wrote it, until somebody reads it.
    """

    spatial: tuple[int, ...]
    candidate: Tally | None = None
    candidate_bytes: int = 0
    candidate_nanoseconds: int = 0
    surmised: bool = False
    unproven: bool = False
    loss: Tally | None = None
    image: bool = False
    conversion: Conversion | None = None


def storage_key(tensor: Tensor) -> int:
    """Identity of the memory behind a tensor, for as long as the memory or a `StorageWeakRef` to it exists."""
    return tensor.untyped_storage()._cdata


class Marks:
    """Marks by storage. Keeps no memory alive; forgets freed storages, so that its size follows that of the model."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[StorageWeakRef, Mark]] = {}
        self._limit = _FEWEST_BEFORE_PRUNING

    def __bool__(self) -> bool:
        return bool(self._marks)

    def __len__(self) -> int:
        return len(self._marks)

    def get(self, key: int) -> Mark | None:
        """The mark of a storage. The weak reference keeps the address from being given to another one."""
        entry = self._marks.get(key)
        return None if entry is None else entry[1]

    def set(self, tensor: Tensor, mark: Mark) -> None:
        if len(self._marks) >= self._limit:
            self.prune()
        self._marks[storage_key(tensor)] = (StorageWeakRef(tensor.untyped_storage()), mark)

    def drop(self, key: int) -> None:
        self._marks.pop(key, None)

    def prune(self) -> None:
        """Forget the storages that were freed; done by itself whenever their number may have doubled."""
        live: dict[int, Any] = {key: entry for key, entry in self._marks.items() if not entry[0].expired()}
        self._marks = live
        self._limit = max(_FEWEST_BEFORE_PRUNING, 2 * len(live))
