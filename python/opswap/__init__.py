# SPDX-License-Identifier: MIT
"""Fast, verified replacements for the slow operators of small convolutional networks in PyTorch."""

from . import functional, isa, layout, memory, merge, models, nn, shapes
from ._torch import warn_of_version
from .nn import ChannelShuffle, GroupedLinear, IndexSelectFull, IndexSelectHalf, Pool3dAsPool2d
from .nn.frozen import freeze, unfreeze
from .ops import disabled, force_reference, reset_stats, stats
from .swap import (
    Explanation,
    Report,
    dynamo_backend,
    explain,
    optimize,
    report,
    scan,
    swap,
    tune,
    unswap,
    verify,
)

__version__ = "0.1.0"

warn_of_version()

__all__ = [
    "ChannelShuffle",
    "Explanation",
    "GroupedLinear",
    "IndexSelectFull",
    "IndexSelectHalf",
    "Pool3dAsPool2d",
    "Report",
    "disabled",
    "dynamo_backend",
    "explain",
    "force_reference",
    "freeze",
    "functional",
    "isa",
    "layout",
    "memory",
    "merge",
    "models",
    "nn",
    "optimize",
    "report",
    "reset_stats",
    "scan",
    "shapes",
    "stats",
    "swap",
    "tune",
    "unfreeze",
    "unswap",
    "verify",
]
