# SPDX-License-Identifier: MIT
"""How much faster than a grouped convolution the other ways were measured: shipped figures, and this machine's own.

If a merged module is not measured on its own inputs, its convolutions run as was recorded for the nearest sizes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from opswap._machine import cpu_class

from ..swap.planning.gains import cache_file, keep_gains, kept_gains

__all__ = [
    "SIZES",
    "WAYS",
    "Choice",
    "Gains",
    "Site",
    "keep",
    "own_file",
    "recorded_choice",
    "setting_name",
    "source",
]

# By setting, rows of the sizes and the gains of the ways.
Gains = dict[str, list[list[float]]]

_SHIPPED = Path(__file__).with_name("costs.json")
# Both are of the recorder: the sizes of a row, and the ways whose gains follow them, 0 if there are none.
SIZES = ("taps", "in_channels", "out_channels", "branches", "batch", "pixels")
WAYS = ("chunks", "product")
# Gains below this are noise; rows further than this, in halvings and doublings of all sizes together, are not used.
_LEAST_GAIN, _FURTHEST = 1.05, 6.0


@dataclass(frozen=True)
class Site:
    """A convolution of every branch. taps: of its kernel; pixels: of one image of its input."""

    taps: int
    in_channels: int
    out_channels: int
    branches: int
    batch: int
    pixels: int
    channels_last: bool
    training: bool
    threads: int

    @property
    def setting(self) -> str:
        """The part of the table that is looked at."""
        return setting_name(self.training, self.channels_last, self.threads)


@dataclass(frozen=True)
class Choice:
    """way: a mode of BranchConv. gain: of it over the grouped convolution, None if nothing like it was recorded."""

    way: str
    gain: float | None


def setting_name(training: bool, channels_last: bool, threads: int) -> str:
    """Such as "inference, channels_last, 1 thread"."""
    memory = "channels_last" if channels_last else "contiguous"
    return f"{'training' if training else 'inference'}, {memory}, {'1 thread' if threads == 1 else 'threads'}"


def own_file() -> Path:
    """Where this machine's own figures are kept: beside those of `opswap.tune`."""
    return cache_file().with_name("merge_costs.json")


def source() -> str:
    """Whose figures are read: this machine's, those of a class of CPUs, or "" if there are no figures."""
    if _own(own_file()) is not None:
        return "this machine"
    return cpu_class() if cpu_class() in _shipped() else ""


def recorded_choice(site: Site, ways: Sequence[str]) -> Choice:
    """The fastest of the ways, or "wide", by the row of the nearest sizes."""
    own = _own(own_file())
    table = _shipped().get(cpu_class(), {}).get("gains", {}) if own is None else own
    rows = table.get(site.setting, ())
    wanted = [math.log2(max(getattr(site, name), 1)) for name in SIZES]
    distance, gains = min(
        (
            (_distance(row, wanted), row[len(SIZES) :])
            for row in rows
            if len(row) == len(SIZES) + len(WAYS) and (row[0] == 1) == (site.taps == 1)
        ),
        default=(math.inf, ()),
    )
    if distance > _FURTHEST:
        return Choice("wide", None)
    known = [(gain, way) for way, gain in zip(WAYS, gains, strict=True) if way in ways]
    gain, way = max(known, default=(0.0, "wide"))
    return Choice(way, gain) if gain >= _LEAST_GAIN else Choice("wide", 1.0)


def _distance(row: Sequence[float], wanted: Sequence[float]) -> float:
    return sum(abs(math.log2(size) - log) for size, log in zip(row, wanted, strict=False))


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    return json.loads(_SHIPPED.read_text())


_own = lru_cache(maxsize=4)(kept_gains)


def keep(gains: Gains) -> None:
    """Make these this machine's own figures. Raises: OSError if the cache folder cannot be written."""
    keep_gains(own_file(), gains)
    _own.cache_clear()
