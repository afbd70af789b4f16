# SPDX-License-Identifier: MIT
"""The rules that `swap` applies, one file a family; a rule that comes first takes a piece of code first."""

from . import channels, dropout, linear, norm, norm_functional, permutation, pool
from .rule import Replacement, Rule

__all__ = ["DEFAULT", "OPTIONAL", "Replacement", "Rule"]

_NORMS = norm.RULES + norm_functional.RULES
DEFAULT: tuple[Rule, ...] = (
    channels.RULES + permutation.RULES + pool.RULES + _NORMS + linear.RULES + dropout.RULES
)
OPTIONAL: tuple[Rule, ...] = pool.OPTIONAL
