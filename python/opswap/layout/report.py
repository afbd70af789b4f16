# SPDX-License-Identifier: MIT
"""What `check` saw, as sites, as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from opswap.finding import Hidden, Locator, Report, Site, format_bytes, format_seconds, plural

from .observer import Observer
from .tally import STATUSES, Tally

__all__ = ["LayoutReport", "LayoutSite"]

FINDINGS = frozenset({"lost", "needless", "copied inside", "refused"})


@dataclass(frozen=True)
class LayoutSite(Site):
    """A site of the layout checker; status is one of kept, lost, restored, needless, ambiguous, copied inside, refused.

    seconds: wall time between call and return of the operator, in all its calls (on a GPU: of the launch).
    downstream_count, downstream_bytes, downstream_seconds: of the operators that ran on what this one made
        contiguous, until one restored the format; 0 for other statuses than lost and needless.
    """

    seconds: float = 0.0
    downstream_count: int = 0
    downstream_bytes: int = 0
    downstream_seconds: float = 0.0

    @property
    def cost(self) -> int:
        """Bytes moved here and downstream; 0 for the statuses kept and ambiguous."""
        return 0 if self.status in ("kept", "ambiguous") else self.bytes + self.downstream_bytes

    @staticmethod
    def of(tally: Tally) -> LayoutSite:
        shapes = [tuple(map(int, shape)) for shape in tally.shapes]  # tensors under torch.jit.trace
        return LayoutSite.at(
            tally.origin,
            status=tally.status,
            op=tally.op,
            count=tally.count,
            bytes=tally.bytes,
            shapes=tuple(dict.fromkeys(shapes)),
            hint=tally.hint,
            allowed=tally.allowed,
            seconds=tally.nanoseconds * 1e-9,
            downstream_count=tally.down_count,
            downstream_bytes=tally.down_bytes,
            downstream_seconds=tally.down_nanoseconds * 1e-9,
        )


class LayoutReport(Report):
    """Where channels_last was kept and lost; up to date at any time, inside the context and after it.

    `sites` has every operator on channels_last images, the costliest first, kept ones last; `findings` those that are
    lost, needless, copied inside or refused, without the allowed ones; `print` and a notebook show the findings.
    """

    title = "opswap.layout"
    nothing_found = "channels_last is kept throughout"

    def __init__(self, observer: Observer, locator: Locator) -> None:
        self._observer = observer
        self._locator = locator
        self.hidden = Hidden("which formats a compiler chooses inside its kernels is not shown")

    @property
    def sites(self) -> list[LayoutSite]:
        tallies = [t for t in list(self._observer.tallies.values()) if t.count]
        sites = [LayoutSite.of(t) for t in tallies]
        return sorted(sites, key=lambda s: (-s.cost, STATUSES.index(s.status), -s.bytes))

    @property
    def notes(self) -> list[str]:
        notes = self.hidden.notes
        if not self._observer.seen_channels_last:
            notes.append(
                "no 4-D or 5-D tensor was in channels_last: convert the model and its inputs, "
                "x.to(memory_format=torch.channels_last), or opswap.swap(model, memory_format=torch.channels_last); "
                "processes that this one started are not watched"
            )
        if self._locator.lost_nodes:
            notes.append(
                "a backward ran through nodes that were made before the context began, or too long ago; "
                "its sites show the line that called backward"
            )
        return notes

    @property
    def summary(self) -> dict[str, Any]:
        """operators: on images; for each status: calls and bytes; contiguous_bytes: moved downstream of losses."""
        by_status: dict[str, Any] = {status: {"calls": 0, "bytes": 0} for status in STATUSES}
        for site in self.sites:
            by_status[site.status]["calls"] += site.count
            by_status[site.status]["bytes"] += site.bytes
        wrong = sum(self._observer.wrong_bytes.values())
        return {"operators": self._observer.operators, "contiguous_bytes": wrong, **by_status}

    def is_finding(self, site: LayoutSite) -> bool:
        return site.status in FINDINGS

    def detail(self, sites: Sequence[LayoutSite]) -> str:
        count = sum(s.downstream_count for s in sites)
        if not count:
            return ""
        moved = format_bytes(sum(s.downstream_bytes for s in sites))
        seconds = format_seconds(sum(s.downstream_seconds for s in sites))
        return f"after it {plural(count, 'operator')} on contiguous data: {moved}, {seconds}"

    def plot(self, path: str | PathLike[str]) -> None:
        """Bars of the bytes that each module moved, by what became of the format; losses are marked with their line.

        Args: path: of the picture, a PNG file whatever the suffix.
        Raises: ModuleNotFoundError without matplotlib.
        """
        from .plot import draw

        observer = self._observer
        draw(path, self.sites, dict(observer.wrong_bytes), list(observer.modules), self._headline())

    def _headline(self) -> str:
        if not self._observer.seen_channels_last and not self.findings:
            return f"{self.title}: nothing was in channels_last"
        kept = sum(s.count for s in self.sites if s.status == "kept")
        allowed = sum(s.count for s in self.sites if s.allowed and self.is_finding(s))
        text = f"{super()._headline()}; {plural(kept, 'operator')} kept the format"
        return text + (f", {allowed} allowed losses" if allowed else "")
