# SPDX-License-Identifier: MIT
"""The rules that `swap` applies, one file a family; a rule that comes first takes a piece of code first."""

from . import channels, convolution, dropout, groups, linear, norm, norm_functional, permutation, pool
from .rule import Replacement, Rule

__all__ = ["DEFAULT", "OPTIONAL", "Replacement", "Rule"]

_NORMS = norm.RULES + norm_functional.RULES
_LINEAR = linear.RULES + groups.RULES
_ARITHMETIC = _NORMS + _LINEAR + convolution.RULES
DEFAULT: tuple[Rule, ...] = channels.RULES + permutation.RULES + pool.RULES + _ARITHMETIC + dropout.RULES
OPTIONAL: tuple[Rule, ...] = pool.OPTIONAL
