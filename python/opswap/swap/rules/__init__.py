# SPDX-License-Identifier: MIT
"""The rules that `swap` applies, one file a family; a rule that comes first takes a piece of code first."""

from . import channels, dropout, groups, linear, norm, norm_functional, permutation, pool
from .rule import Replacement, Rule

__all__ = ["DEFAULT", "OPTIONAL", "Replacement", "Rule"]

_NORMS = norm.RULES + norm_functional.RULES
_LINEAR = linear.RULES + groups.RULES
DEFAULT: tuple[Rule, ...] = channels.RULES + permutation.RULES + pool.RULES + _NORMS + _LINEAR + dropout.RULES
OPTIONAL: tuple[Rule, ...] = pool.OPTIONAL
