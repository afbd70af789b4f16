# SPDX-License-Identifier: MIT
"""What was swapped and what was kept, as data and as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace

from opswap import _table

__all__ = ["Check", "Part", "Planned", "Report", "Site", "table"]


@dataclass(frozen=True)
class Site:
    """One place in a model.

    path: the module whose forward holds it, "" for the model itself.
    rule: the rule's name, "" if the code could not be analysed, so that no rule saw it.
    source: "file:line", or the module's class if it is one of torch's own.
    exact: the replacement is bit-equal. reason: why it was kept, "" if it was swapped.
    gain: how many times faster than torch the replacement was measured on this machine, or on others with the same
        instruction set; None if it was not.
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
    share of the largest value, for the tensor that detail names; None if all are bit-equal or a run failed.
    """

    name: str
    holds: bool
    detail: str
    error: float | None = None
    bound: float | None = None


@dataclass(frozen=True)
class Part:
    """One part of what `optimize` did, in the order in which the parts were added.

    name: "memory", "denormals", "dtype", "swap" or "memory format". done: False if it was left out. detail: what was
    done, or why not. before, after: milliseconds of a step of the example inputs without the part, and with it; None
    if it was not measured.
    """

    name: str
    done: bool
    detail: str
    before: float | None = None
    after: float | None = None


@dataclass(frozen=True)
class Report:
    """The decisions about one model, in the order of its modules; prints as a table.

    memory_format: the format that `swap` converts parameters and inputs to, such as "channels_last"; "" for none.
    denormals: parameters with denormal numbers, by name: how many; they slow a CPU down, see `opswap.memory`.
    parts: what `optimize` did, if the model was swapped by it.
    note: a sentence on what the report cannot show, such as that the model was not swapped; else "".
    """

    swapped: list[Site] = field(default_factory=list)
    kept: list[Site] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    memory_format: str = ""
    denormals: dict[str, int] = field(default_factory=dict)
    note: str = ""
    parts: list[Part] = field(default_factory=list)

    def to_json(self) -> str:
        """One object with the fields above, sites and checks as objects with the fields of `Site` and `Check`."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        rows = [
            (s.path, s.rule, "exact" if s.exact else "rounding", _times(s.gain), s.source)
            for s in self.swapped
        ]
        lines = [f"{len(self.swapped)} swapped"]
        lines += table(("module", "rule", "result", "gain", "source"), rows)
        if self.kept:
            rows = [(s.path, s.rule or "-", s.reason, s.source) for s in self.kept]
            lines += ["", f"{len(self.kept)} kept as they are"]
            lines += table(("module", "rule", "reason", "source"), rows)
        if self.parts:
            rows = [
                (p.name, "done" if p.done else "left out", _ms(p.before), _ms(p.after), _ratio(p), p.detail)
                for p in self.parts
            ]
            lines += ["", "optimized, in this order"]
            lines += table(("part", "", "ms before", "ms after", "faster", "detail"), rows)
        if self.checks:
            rows = [
                (c.name, "holds" if c.holds else "FAILS", _share(c.error), _share(c.bound), c.detail)
                for c in self.checks
            ]
            lines += ["", "checked"]
            lines += table(("mode", "result", "error", "error of stock", "detail"), rows)
        if self.note:
            lines += ["", self.note]
        if self.memory_format:
            lines += ["", f"parameters and inputs are converted to {self.memory_format}"]
        if self.denormals:
            rows = [(name, str(count)) for name, count in self.denormals.items()]
            lines += [
                "",
                f"{sum(self.denormals.values())} denormal numbers: see opswap.memory.flush_denormals",
            ]
            lines += table(("parameter", "denormals"), rows)
        return "\n".join(lines)


@dataclass(frozen=True)
class Planned:
    """What a swap decided: kept on the model and on every module with a new forward, copied and pickled with them.

    path: of the module in the model that was swapped. report: of that model. classes: of its modules by path, a shared
    module under each of its paths. shared: (path, first path) of the further paths of shared modules; the report names
    the first.
    """

    path: str
    report: Report
    classes: tuple[tuple[str, str], ...]
    shared: tuple[tuple[str, str], ...] = ()

    def __deepcopy__(self, memo: dict[int, object]) -> Planned:
        return self


def _times(gain: float | None) -> str:
    return "-" if gain is None else f"{gain:.1f}x"


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.1f}"


def _ratio(part: Part) -> str:
    return "-" if part.before is None or not part.after else f"{part.before / part.after:.2f}x"


def _share(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table whose first column is the path of a module; the model itself, whose path is empty, is "(model)"."""
    return _table.table(head, [(path or "(model)", *rest) for path, *rest in rows])
