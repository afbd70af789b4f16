# SPDX-License-Identifier: MIT
"""Where the time of a training step goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

__all__ = ["shares"]

# Parts of the names that the profiler gives to operators and to the Functions of opswap, the first that fits.
_KINDS = {
    "convolution": ("conv",),
    "norm": ("batchnorm", "batch_norm"),
    "channels": ("channelshuffle", "channel_shuffle"),
    "pool": ("pool",),
    "activation": ("relu", "threshold", "clamp_min"),
    "copies": ("copy", "clone", "contiguous", "aten::cat"),
    "optimizer": ("optimizer",),
}


def shares(function: Callable[[], Any]) -> dict[str, float]:
    """Of the time inside operators over three calls, the part of each kind."""
    with profile(activities=[ProfilerActivity.CPU]) as run:
        for _ in range(3):
            function()
    totals = dict.fromkeys((*_KINDS, "other"), 0.0)
    for event in run.key_averages():
        totals[_kind(event.key.lower())] += event.self_cpu_time_total
    whole = sum(totals.values())
    return {kind: total / whole for kind, total in totals.items()}


def _kind(name: str) -> str:
    return next((kind for kind, parts in _KINDS.items() if any(p in name for p in parts)), "other")
