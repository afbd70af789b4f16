# SPDX-License-Identifier: MIT
"""What was swapped and what was kept, as data and as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

__all__ = ["Report", "Site"]


@dataclass(frozen=True)
class Site:
    """One place in a model.

    path: the module whose forward holds it, "" for the model itself.
    rule: the rule's name, "" where no rule got to see the code.
    source: "file:line", or the module's class where it is one of torch's own.
    exact: the replacement is bit-equal. reason: why it was kept, "" where swapped.
    """

    path: str
    rule: str
    source: str
    exact: bool
    reason: str = ""

    def below(self, prefix: str) -> Site:
        """The same site, seen from a parent that has the module at `prefix`."""
        return replace(self, path=".".join(p for p in (prefix, self.path) if p))


@dataclass(frozen=True)
class Report:
    """The decisions about one model, in the order of its modules; prints as a table.

    memory_format: what `swap` brings parameters and inputs to, as "channels_last"; "" where nothing is brought.
    denormals: parameters with denormal numbers, by name: how many; they slow a CPU down, see `opswap.memory`.
    """

    swapped: list[Site] = field(default_factory=list)
    kept: list[Site] = field(default_factory=list)
    memory_format: str = ""
    denormals: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """One object with the fields above, the sites as objects with the fields of `Site`."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        rows = [(s.path, s.rule, "exact" if s.exact else "rounding", s.source) for s in self.swapped]
        lines = [f"{len(self.swapped)} swapped"]
        lines += _table(("module", "rule", "result", "source"), rows)
        if self.kept:
            rows = [(s.path, s.rule or "-", s.reason, s.source) for s in self.kept]
            lines += ["", f"{len(self.kept)} kept as they are"]
            lines += _table(("module", "rule", "reason", "source"), rows)
        if self.memory_format:
            lines += ["", f"parameters and inputs are brought to {self.memory_format}"]
        if self.denormals:
            rows = [(name, str(count)) for name, count in self.denormals.items()]
            lines += [
                "",
                f"{sum(self.denormals.values())} denormal numbers: see opswap.memory.flush_denormals",
            ]
            lines += _table(("parameter", "denormals"), rows)
        return "\n".join(lines)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = [head, *((path or "(model)", *rest) for path, *rest in rows)]
    if len(rows) == 1:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
