# SPDX-License-Identifier: MIT
"""What a finder found, as data, as a table, as HTML and as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, ClassVar

from opswap._table import table

from .source import Origin, line_text, short_path

__all__ = ["Report", "Site", "format_bytes", "format_seconds", "plural"]


@dataclass(frozen=True)
class Site:
    """One finding: an operator at one line, in one module, with one status.

    Attributes:
        status: what happened, a word of the finder's own list.
        op: the operator's name, "aten.clone".
        module: path of the innermost module that was called, "" for the model itself or no module.
        file, line, function: the user's line; "" and 0 if the operator was not called from Python code of the user.
        phase: "forward", "backward", "recompute" or "optimizer".
        count: how many times it happened.
        bytes: how many bytes the operator moved, in all these calls.
        shapes: the different sizes of its first tensor, at most eight.
        hint: what to change, "" if nothing.
        allowed: the caller's allow-list names it.
    """

    status: str
    op: str
    module: str
    file: str
    line: int
    function: str
    phase: str
    count: int
    bytes: int
    shapes: tuple[tuple[int, ...], ...]
    hint: str = ""
    allowed: bool = False

    @classmethod
    def at(cls, origin: Origin, **fields: Any) -> Any:
        """A site of this class at the line, in the module and phase, of `origin`."""
        return cls(
            module=origin.module,
            file=origin.file,
            line=origin.line,
            function=origin.function,
            phase=origin.phase,
            **fields,
        )

    @property
    def cost(self) -> int:
        """By which sites are sorted: bytes, unless the finder defines another order."""
        return self.bytes

    @property
    def source(self) -> str:
        """ "file:line", with the file relative to the working directory."""
        return f"{short_path(self.file)}:{self.line}" if self.file else "(no Python line)"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "cost": self.cost}


class Report:
    """Base of the finders' reports.

    A subclass gives `sites` and `notes`, defines with `is_finding` which sites are findings, and draws itself in
    `plot`.
    """

    title: ClassVar[str] = ""
    nothing_found: ClassVar[str] = "nothing found"

    @property
    def sites(self) -> list[Any]:
        """Every site, the costliest first."""
        raise NotImplementedError

    @property
    def notes(self) -> list[str]:
        """What could not be seen, and what else concerns the whole run."""
        return []

    @property
    def summary(self) -> Mapping[str, Any]:
        """Figures of the whole run."""
        return {}

    @property
    def findings(self) -> list[Any]:
        """The sites to be changed, without those of the allow-list."""
        return [s for s in self.sites if self.is_finding(s) and not s.allowed]

    def is_finding(self, site: Any) -> bool:
        """True if the site is a fault, for `findings` and the exit status of --strict."""
        return True

    def detail(self, sites: Sequence[Any]) -> str:
        """A sentence on sites of one line that differ in their module only, for the table; "" for none."""
        return ""

    def format_cost(self, cost: float) -> str:
        """The sum of the costs of some sites, with its unit."""
        return format_bytes(cost)

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw the report, a PNG file whatever the suffix. Raises: ModuleNotFoundError without matplotlib."""
        raise NotImplementedError

    def to_json(self) -> str:
        """One object: title, sites (with the fields of `Site`, and `cost`), notes and summary."""
        value = {
            "title": self.title,
            "sites": [s.as_dict() for s in self.sites],
            "notes": self.notes,
            "summary": dict(self.summary),
        }
        return json.dumps(value, indent=2)

    def __str__(self) -> str:
        lines = [self._headline()]
        rows = self._rows()
        if rows:
            lines += self._blocks(rows)
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = self._rows()
        head = "".join(f"<th>{name}</th>" for name in (*_HEAD, "code", "detail", "what to change"))
        body = "".join(self._html_row(row) for row in rows)
        inner = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return f"<p>{html.escape(self._headline())}</p>{inner}" + (f"<ul>{notes}</ul>" if notes else "")

    def _blocks(self, rows: Sequence[_Row]) -> list[str]:
        """A table whose rows are followed by the line of code, the detail and what to change."""
        head, *cells = table(_HEAD, [self._cells(row) for row in rows])
        lines = [head]
        for row, text in zip(rows, cells, strict=True):
            lines.append(text)
            more = (row.code(), self.detail(row.sites), row.hint() and f"-> {row.hint()}")
            lines += [f"    {line}" for line in more if line]
        return lines

    def _html_row(self, row: _Row) -> str:
        cells = [html.escape(cell) for cell in self._cells(row)]
        cells.append(f"<code>{html.escape(row.code())}</code>")
        cells += [html.escape(self.detail(row.sites)), html.escape(row.hint())]
        return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"

    def _rows(self) -> list[_Row]:
        return _merged(self.findings)

    def _cells(self, row: _Row) -> tuple[str, ...]:
        first = row.sites[0]
        count = sum(s.count for s in row.sites)
        cost = self.format_cost(sum(s.cost for s in row.sites))
        return first.status, f"{count}x", cost, first.op, first.phase, row.where(), row.modules()

    def _headline(self) -> str:
        found = self.findings
        if not found:
            return f"{self.title}: {self.nothing_found}"
        lines = len({(s.file, s.line) for s in found})
        count = sum(s.count for s in found)
        return f"{self.title}: {plural(count, 'finding')} at {plural(lines, 'line')}"


_HEAD = ("status", "times", "cost", "operator", "phase", "where", "module")
_SHOWN_MODULES = 3


@dataclass(frozen=True)
class _Row:
    """Sites of one line that differ in their module only."""

    sites: tuple[Any, ...]

    def modules(self) -> str:
        names = list(dict.fromkeys(s.module or "(model)" for s in self.sites))
        more = len(names) - _SHOWN_MODULES
        return ", ".join(names[:_SHOWN_MODULES]) + (f" and {more} more" if more > 0 else "")

    def where(self) -> str:
        first = self.sites[0]
        return first.source + (f" in {first.function}" if first.function else "")

    def code(self) -> str:
        return line_text(self.sites[0].file, self.sites[0].line)

    def hint(self) -> str:
        return "; ".join(dict.fromkeys(s.hint for s in self.sites if s.hint))


def _merged(sites: Sequence[Any]) -> list[_Row]:
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for s in sites:
        key = (s.status, s.op, s.file, s.line, s.phase, "" if s.file else s.module)
        groups.setdefault(key, []).append(s)
    rows = sorted(groups.values(), key=lambda group: -sum(s.cost for s in group))
    return [_Row(tuple(group)) for group in rows]


def plural(count: int, noun: str) -> str:
    """ "1 line", "2 lines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_bytes(count: float) -> str:
    """1536 -> "1.5 kB", with powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_seconds(seconds: float) -> str:
    """0.0123 -> "12.3 ms"."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
