# SPDX-License-Identifier: MIT
"""What was swapped and what was kept, as data and as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

__all__ = ["Check", "Report", "Site"]


@dataclass(frozen=True)
class Site:
    """One place in a model.

    path: the module whose forward holds it, "" for the model itself.
    rule: the rule's name, "" where no rule got to see the code.
    source: "file:line", or the module's class where it is one of torch's own.
    exact: the replacement is bit-equal. reason: why it was kept, "" where swapped.
    gain: how many times faster the replacement was measured on this machine or its class, None if never.
    """

    path: str
    rule: str
    source: str
    exact: bool
    reason: str = ""
    gain: float | None = None

    def below(self, prefix: str) -> Site:
        """The same site, seen from a parent that has the module at `prefix`."""
        return replace(self, path=".".join(p for p in (prefix, self.path) if p))


@dataclass(frozen=True)
class Check:
    """One comparison of a swapped model with the model as it was.

    name: the mode and memory format. error, bound: of the swapped and of the stock model against float64, as a
    share of the largest value, for the tensor that detail names; None where all are bit-equal or a run failed.
    """

    name: str
    holds: bool
    detail: str
    error: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Report:
    """The decisions about one model, in the order of its modules; prints as a table.

    memory_format: what `swap` brings parameters and inputs to, as "channels_last"; "" where nothing is brought.
    denormals: parameters with denormal numbers, by name: how many; they slow a CPU down, see `opswap.memory`.
    """

    swapped: list[Site] = field(default_factory=list)
    kept: list[Site] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    memory_format: str = ""
    denormals: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """One object with the fields above, sites and checks as objects with the fields of `Site` and `Check`."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        rows = [
            (s.path, s.rule, "exact" if s.exact else "rounding", _times(s.gain), s.source)
            for s in self.swapped
        ]
        lines = [f"{len(self.swapped)} swapped"]
        lines += _table(("module", "rule", "result", "gain", "source"), rows)
        if self.kept:
            rows = [(s.path, s.rule or "-", s.reason, s.source) for s in self.kept]
            lines += ["", f"{len(self.kept)} kept as they are"]
            lines += _table(("module", "rule", "reason", "source"), rows)
        if self.checks:
            rows = [
                (c.name, "holds" if c.holds else "FAILS", _share(c.error), _share(c.bound), c.detail)
                for c in self.checks
            ]
            lines += ["", "checked"]
            lines += _table(("mode", "result", "error", "error of stock", "detail"), rows)
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


def _times(gain: float | None) -> str:
    return "-" if gain is None else f"{gain:.1f}x"


def _share(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = [head, *((path or "(model)", *rest) for path, *rest in rows)]
    if len(rows) == 1:
        return []
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
