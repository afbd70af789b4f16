# SPDX-License-Identifier: MIT
"""Arguments that are lists or tuples of tensors, as those of DenseNet's layers: a graph has each tensor as an argument.

How many there are is known from a run with example inputs alone, and is checked on every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["Listed", "as_arguments", "flat", "is_listed", "names_in"]

_MOST = 256


class Listed(NamedTuple):
    """An argument is a list or tuple, `kind`, of so many tensors."""

    kind: type
    number: int

    def __str__(self) -> str:
        return f"a {self.kind.__name__} of {self.number} tensors"


def is_listed(value: Any) -> bool:
    """True for a plain list or tuple of tensors alone."""
    if type(value) not in (list, tuple) or not 0 < len(value) <= _MOST:
        return False
    return all(isinstance(v, Tensor) for v in value)


def flat(values: Iterable[Any]) -> list[Any]:
    """Arguments with the tensors of each list in its place."""
    return [v for value in values for v in (value if is_listed(value) else [value])]


def names_in(name: str, listed: Listed) -> list[str]:
    """The names in a graph of the tensors of the argument `name`."""
    return [f"opswap_{name}_{i}" for i in range(listed.number)]


def as_arguments(names: Iterable[str], lists: Mapping[str, Listed]) -> list[str]:
    """Arguments of a forward as its generated code passes them to a graph's function."""
    return [f"*{name}" if name in lists else name for name in names]
