# SPDX-License-Identifier: MIT
"""Many small layers or branches as one, and back: trained weights and the optimizer's state are carried over."""

from .branches import MergedBranches, branches
from .optimizer import move_optimizer_state, move_parameters
from .report import MergedSite, MergeReport
from .tune import tune

__all__ = [
    "MergeReport",
    "MergedBranches",
    "MergedSite",
    "branches",
    "move_optimizer_state",
    "move_parameters",
    "tune",
]
