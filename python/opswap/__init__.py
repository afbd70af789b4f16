# SPDX-License-Identifier: MIT
"""Fast, verified replacements for the slow operators of small convolutional networks in PyTorch."""

from . import functional, isa, memory, merge, models, nn
from .nn import ChannelShuffle, GroupedLinear, IndexSelectFull, IndexSelectHalf, Pool3dAsPool2d
from .ops import force_reference, reset_stats, stats
from .swap import Report, dynamo_backend, report, scan, swap, tune, unswap, verify

__version__ = "0.1.0"

__all__ = [
    "ChannelShuffle",
    "GroupedLinear",
    "IndexSelectFull",
    "IndexSelectHalf",
    "Pool3dAsPool2d",
    "Report",
    "dynamo_backend",
    "force_reference",
    "functional",
    "isa",
    "memory",
    "merge",
    "models",
    "nn",
    "report",
    "reset_stats",
    "scan",
    "stats",
    "swap",
    "tune",
    "unswap",
    "verify",
]
