# SPDX-License-Identifier: MIT
"""One module per operator family: reference, registered operator, autograd, public function."""

from . import channels, linear, norm, permutation, pool
from ._stats import force_reference, reset_stats, stats
from ._switch import disabled

__all__ = [
    "channels",
    "disabled",
    "force_reference",
    "linear",
    "norm",
    "permutation",
    "pool",
    "reset_stats",
    "stats",
]
