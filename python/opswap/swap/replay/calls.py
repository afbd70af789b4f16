# SPDX-License-Identifier: MIT
"""Calls that were recorded, and the order in which they run again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from opswap._torch import tree_leaves

__all__ = ["Call", "in_order_of_memory", "memory_of", "tensors_in"]


@dataclass(eq=False)
class Call:
    """writes: over an argument, which is the result. versions: how often what a call of torch returned was written to,
    by the ids of the tensors."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    may_decline: bool = False
    writes: bool = False
    versions: dict[int, int] = field(default_factory=dict)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, lists and dictionaries."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def in_order_of_memory(calls: Sequence[Call]) -> list[Call]:
    """A call whose results are smaller than a result that it reads follows this one, which the caches still hold then,
    and whose memory is free sooner. Calls stay on their side of those that write over what they read."""
    ordered: list[Call] = []
    made: list[frozenset[int]] = []  # by each of the ordered ones
    for call in calls:
        at = _earliest(call, ordered, made)
        ordered.insert(at, call)
        made.insert(at, frozenset(map(id, tensors_in(call.result))))
    return ordered


def _earliest(call: Call, before: Sequence[Call], made: Sequence[frozenset[int]]) -> int:
    read = {id(t): t for t in tensors_in((call.args, call.kwargs))}
    if call.writes:
        return len(before)
    for at in range(len(before), 0, -1):
        found = made[at - 1] & read.keys()
        if found:
            shrinks = _bytes(tensors_in(call.result)) < _bytes(read[key] for key in found)
            return at if shrinks else len(before)
        if before[at - 1].writes and memory_of(before[at - 1].result) in map(memory_of, read.values()):
            return len(before)
    return len(before)


def memory_of(tensor: Any) -> int:
    """Where the memory of a tensor begins, which its views share."""
    return tensor.untyped_storage().data_ptr()


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
