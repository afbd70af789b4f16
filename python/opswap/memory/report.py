# SPDX-License-Identifier: MIT
"""What `denormals` found: weights, activations and gradients that hold denormal numbers, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from opswap.finding import Hidden, Origin, Report, Site, format_seconds, plural

__all__ = ["Charge", "DenormalsReport", "DenormalsSite", "Tally"]

FINDINGS = ("weight", "activation", "gradient", "state")
_MOST_SHAPES = 8
_MEASURED_CALLS = 2

_FLUSH = "opswap.memory.flush_denormals(True) before training"
_HINTS = {
    "weight": f"{_FLUSH}, or torch.where(p.abs() < torch.finfo(p.dtype).tiny, 0, p)",
    "activation": _FLUSH,
    "gradient": f"{_FLUSH}, or a larger loss, as a GradScaler makes it",
    "state": f"{_FLUSH}: averages of gradients that stay 0 fade away",
}


@dataclass(slots=True)
class Charge:
    """Time of one operator at one line that a source of denormals is charged with. normal, flushed: nanoseconds of
    the calls that were measured."""

    calls: int = 0
    measured: int = 0
    normal: int = 0
    flushed: int = 0

    def wants_time(self) -> bool:
        """True until enough calls were measured."""
        return self.measured < _MEASURED_CALLS

    def add_time(self, normal: int, flushed: int) -> None:
        self.measured += 1
        self.normal += normal
        self.flushed += flushed

    def seconds(self) -> tuple[float, float]:
        """Of all calls, without and with flushing."""
        share = 1e-9 * self.calls / self.measured if self.measured else 0.0
        return self.normal * share, self.flushed * share


@dataclass(slots=True, eq=False)
class Tally:
    """One source of denormals, or one operator that passes them on. Memory does not depend on the number of calls."""

    status: str
    op: str
    origin: Origin
    allowed: bool = False
    count: int = 0
    denormals: int = 0
    elements: int = 0
    bytes: int = 0
    shapes: dict[tuple[int, ...], None] = field(default_factory=dict)
    charges: dict[tuple[str, Origin], Charge] = field(default_factory=dict)

    def add(self, shape: tuple[int, ...], denormals: int, elements: int, bytes: int) -> None:
        """One more result of an operator."""
        self.denormals += denormals
        self.elements += elements
        self.bytes += bytes
        if len(self.shapes) < _MOST_SHAPES:
            self.shapes[shape] = None

    def charge(self, op: str, origin: Origin) -> Charge:
        """The time of an operator that computes on these denormals, one call more."""
        found = self.charges.get((op, origin))
        if found is None:
            found = self.charges[op, origin] = Charge()
        found.calls += 1
        return found


@dataclass(frozen=True)
class DenormalsSite(Site):
    """A weight that holds denormal numbers, or an operator that returns them.

    status: "weight" (a parameter or buffer; `op` is its name, file and phase are empty), "activation", "gradient" or
        "state" (of an optimizer): an operator that returns denormals though it reads none in; "carried": one that
        reads and returns some.
    count: calls of the operator that returned some; for a weight, calls of operators that read it.
    bytes: of the tensors that hold them.
    denormals, elements: numbers of these tensors that are denormal, and all of them.
    seconds, flushed_seconds: time of all operators that computed on these denormals, here and downstream, without and
        with flushing, measured on up to two calls of each; 0 if nothing was measured.
    """

    denormals: int = 0
    elements: int = 0
    seconds: float = 0.0
    flushed_seconds: float = 0.0

    @property
    def share(self) -> float:
        """Denormals per number."""
        return self.denormals / self.elements if self.elements else 0.0

    @property
    def saved_seconds(self) -> float:
        """What flushing gains, at least 0."""
        return max(0.0, self.seconds - self.flushed_seconds)

    @property
    def cost(self) -> int:
        """What flushing gains, in nanoseconds."""
        return round(self.saved_seconds * 1e9)

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "share": self.share}


class DenormalsReport(Report):
    """Where denormal numbers are, and what flushing them would gain; current at any time.

    `sites` has weights and operators, the costliest first; `findings` those that are sources. `step`: seconds of one
    whole step without and with flushing, if inputs were given, else None.
    """

    title = "opswap.memory"
    nothing_found = "no denormal numbers"

    def __init__(self) -> None:
        self.hidden = Hidden("what a compiler keeps inside its kernels is not counted")
        self.step: tuple[float, float] | None = None
        self._tallies: list[Tally] = []
        self._remarks: dict[str, None] = {}

    def add(self, tally: Tally) -> Tally:
        """Add one more source to the report."""
        self._tallies.append(tally)
        return tally

    def remark(self, text: str) -> None:
        """Note something that concerns the whole run, once."""
        self._remarks[text] = None

    @property
    def sites(self) -> list[DenormalsSite]:
        sites = [_site(t) for t in list(self._tallies) if t.denormals]
        return sorted(sites, key=lambda s: (-s.cost, s.status == "carried", -s.denormals))

    @property
    def notes(self) -> list[str]:
        return [*self._remarks, *self.hidden.notes]

    @property
    def summary(self) -> dict[str, Any]:
        """seconds, flushed_seconds: of the operators that computed on denormals; step_seconds, flushed_step_seconds:
        of a whole step, None if no inputs were given; modules: how many hold denormals."""
        sites = self.findings
        step = self.step or (None, None)
        return {
            "modules": len({s.module for s in sites}),
            "seconds": sum(s.seconds for s in sites),
            "flushed_seconds": sum(s.flushed_seconds for s in sites),
            "step_seconds": step[0],
            "flushed_step_seconds": step[1],
        }

    def is_finding(self, site: DenormalsSite) -> bool:
        return site.status in FINDINGS

    def detail(self, sites: Sequence[DenormalsSite]) -> str:
        some, all_of_them = sum(s.denormals for s in sites), sum(s.elements for s in sites)
        text = f"{some} of {all_of_them} numbers are denormal ({some / all_of_them:.2%})"
        seconds, flushed = sum(s.seconds for s in sites), sum(s.flushed_seconds for s in sites)
        if seconds and flushed:
            text += f"; operators on them: {format_seconds(seconds)}, flushed {format_seconds(flushed)}"
        return text

    def format_cost(self, cost: float) -> str:
        return format_seconds(cost * 1e-9)

    def plot(self, path: str | PathLike[str]) -> None:
        """Bars of what flushing gains in each module, or, if nothing was measured, of its denormal numbers.

        Args: path: of the picture, a PNG file whatever the suffix.
        Raises: ModuleNotFoundError without matplotlib.
        """
        from .plot import draw

        draw(path, self.findings, self._headline())

    def _headline(self) -> str:
        found = self.findings
        if not found:
            return f"{self.title}: {self.nothing_found}"
        text = f"{self.title}: denormal numbers in {plural(len({s.module for s in found}), 'module')}"
        saved = sum(s.saved_seconds for s in found)
        seconds = sum(s.seconds for s in found)
        if seconds:
            text += f"; flushing them gains {format_seconds(saved)} of {format_seconds(seconds)} in operators on them"
        if self.step is not None:
            normal, flushed = self.step
            times = f"{format_seconds(normal)}, flushed {format_seconds(flushed)}"
            text += f"; a step takes {times} ({normal / flushed:.2f}x)"
        return text


def _site(tally: Tally) -> DenormalsSite:
    times = [charge.seconds() for charge in list(tally.charges.values())]
    return DenormalsSite.at(
        tally.origin,
        status=tally.status,
        op=tally.op,
        count=tally.count,
        bytes=tally.bytes,
        shapes=tuple(tally.shapes),
        hint=_HINTS.get(tally.status, ""),
        allowed=tally.allowed,
        denormals=tally.denormals,
        elements=tally.elements,
        seconds=sum(normal for normal, _ in times),
        flushed_seconds=sum(flushed for _, flushed in times),
    )
