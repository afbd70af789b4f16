# SPDX-License-Identifier: MIT
"""What became of the layers of the branches, as data and as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from torch import nn

from opswap._table import table

from .costs import Choice, Site, source
from .layers import Layer, Unmerged
from .layers.conv import BranchConv
from .measure import Timing
from .program import Program, run_batched

__all__ = ["MergeReport", "MergedSite", "describe"]


# Rows of one convolution, each for other sizes of its input.
_ROWS = 4


@dataclass(frozen=True)
class MergedSite:
    """One layer or call. path: of the layer, or the name of a call. layer: in a branch. became: in the merged one."""

    path: str
    layer: str
    became: str


def _cells(site: MergedSite) -> tuple[str, ...]:
    return site.path, site.layer, site.became


@dataclass(frozen=True)
class Recorded:
    """A convolution that runs as was recorded for the nearest sizes."""

    path: str
    site: Site
    choice: Choice

    def __str__(self) -> str:
        s, gain = self.site, self.choice.gain
        sizes = f"{s.branches} x ({s.in_channels}, {s.out_channels}), {s.taps} taps, {s.batch} x {s.pixels} pixels"
        if gain is None:
            what = "grouped (nothing like it is recorded)"
        elif self.choice.way == "wide":
            what = "grouped (no other way is faster)"
        else:
            what = f"{self.choice.way} ({gain:.2f}x over grouped)"
        return f"{self.path:<28} {sizes}, {s.setting}: {what}"


@dataclass(frozen=True)
class MergeReport:
    """Layers that were merged, modules that were kept one per branch with the reason, and how convolutions run.

    timings: what was measured. recorded: without a measurement, what was chosen by figures recorded by `source`: "this
    machine", a class of CPUs, or "" for none; for the sizes of the latest calls, or of the first guess. older: how
    many rows of earlier calls were left out.
    """

    branches: int
    merged: list[MergedSite] = field(default_factory=list)
    kept: list[MergedSite] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    recorded: list[Recorded] = field(default_factory=list)
    older: int = 0
    source: str = ""

    def to_json(self) -> str:
        """One object with the fields of this class."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        lines = [f"{self.branches} branches, {len(self.merged)} layers merged"]
        lines += table(("layer", "in the branches", "became"), map(_cells, self.merged))
        if self.kept:
            lines += [f"{len(self.kept)} kept one per branch"]
            lines += table(("layer", "in the branches", "reason"), map(_cells, self.kept))
        for t in self.timings:
            times = ", ".join(f"{way} {ms:.3f}" for way, ms in t.ms.items())
            first = next(iter(t.ms.values()))
            gain = first / t.ms[t.chosen]
            lines.append(
                f"{t.mode}, {t.elements} elements, {t.path or 'whole'}: {t.chosen} ({times} ms; {gain:.2f}x)"
            )
        if not self.timings and self.source:
            lines.append(f"not measured: convolutions run by figures recorded for {self.source}")
            lines += [f"  {r}" for r in self.recorded]
            lines += [f"  and {self.older} rows of earlier calls"] * bool(self.older)
        elif not self.timings:
            lines.append(
                "not measured, and nothing is recorded for this class of CPUs: everything runs merged"
            )
        return "\n".join(lines)


def describe(
    root: nn.Module,
    empty_copies: Sequence[nn.Module],
    separate: Mapping[str, str],
    programs: Mapping[str, Sequence[tuple[int, Program]]],
    timings: Sequence[Timing],
) -> MergeReport:
    """The report of a merged module."""
    merged, kept = [], []
    for path, module in root.named_modules():
        if isinstance(module, Layer):
            kind = type(empty_copies[0].get_submodule(path)).__name__
            merged.append(MergedSite(path, f"{len(empty_copies)} x {kind}", type(module).__name__))
        elif isinstance(module, Unmerged):
            kind = type(empty_copies[0].get_submodule(path)).__name__
            kept.append(MergedSite(path, f"{len(empty_copies)} x {kind}", separate[path]))
    for step in programs["training"][0][1].steps:
        if step.function is run_batched:
            merged.append(MergedSite(step.node, "call on parameters or the shared input", "torch.vmap"))
    if timings:
        return MergeReport(len(empty_copies), merged, kept, list(timings))
    convolutions = {path: m for path, m in root.named_modules() if isinstance(m, BranchConv)}
    recorded = [
        Recorded(path, *found) for path, m in convolutions.items() for found in m.choices.latest(_ROWS)
    ]
    older = sum(len(m.choices) for m in convolutions.values()) - len(recorded)
    return MergeReport(len(empty_copies), merged, kept, recorded=recorded, older=older, source=source())
