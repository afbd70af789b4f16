# SPDX-License-Identifier: MIT
"""Which cases a run measures, and in which settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .case import Case
from .cases import FAMILIES

__all__ = ["ALLOCATIONS", "Selection", "unknown_name"]

_REUSES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
# The mode of the allocator belongs to a process, so each mode runs in a process of its own.
ALLOCATIONS: dict[str, dict[str, str]] = {"warm": _REUSES, "fresh": {}, "cold": _REUSES}

_OPTIONAL = ("peers",)  # needs packages of an extra
_SLOW = ("compiled", *_OPTIONAL)  # takes minutes


@dataclass(frozen=True)
class Selection:
    """
    names: families, or beginnings of the names of cases, such as "LPRNet"; () for all.
    filters: texts that a label must have, all of them.
    batch: images. threads: numbers of threads. seconds: timing of a row.
    allocations: of ALLOCATIONS; "cold" is warm with other data in the caches before each call.
    rows: (case, shape, dtype, layout, direction) of the rows to measure; () for all.
    """

    names: tuple[str, ...] = ()
    filters: tuple[str, ...] = ()
    batch: int = 32
    threads: tuple[int, ...] = (1,)
    seconds: float = 1.0
    allocations: tuple[str, ...] = ("warm", "fresh")
    rows: tuple[tuple[str, ...], ...] = ()

    def cases(self) -> list[Case]:
        """In the order of the families."""
        wanted = {tuple(row) for row in self.rows}
        return [
            case
            for family, case in _all_cases(self.batch)
            if _is_named(self.names, family, case)
            and all(text in case.label for text in self.filters)
            and (not wanted or not wanted.isdisjoint(_rows(case)))
        ]

    def count(self) -> int:
        """How many rows a run measures, if every form of opswap runs."""
        return sum(len(case.ours) for case in self.cases()) * len(self.threads) * len(self.allocations)


def unknown_name(names: tuple[str, ...], batch: int) -> str | None:
    """The first name that is neither a family nor the beginning of a case's name."""
    for name in names:
        if name not in FAMILIES and not any(_begins(case, name) for _, case in _all_cases(batch)):
            return name
    return None


def _all_cases(batch: int) -> Iterator[tuple[str, Case]]:
    return ((family, case) for family, cases in FAMILIES.items() for case in cases(batch))


def _is_named(names: tuple[str, ...], family: str, case: Case) -> bool:
    """The cases of _SLOW are run only if the family is named, or everything is."""
    if not names:
        return family not in _OPTIONAL
    return family in names or (
        family not in _SLOW and any(_begins(case, n) for n in names if n not in FAMILIES)
    )


def _begins(case: Case, name: str) -> bool:
    return case.case.lower().startswith(name.lower())


def _rows(case: Case) -> set[tuple[str, ...]]:
    return {(case.case, case.shape, case.dtype, layout, case.direction) for layout in case.ours.values()}
