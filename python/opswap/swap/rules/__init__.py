# SPDX-License-Identifier: MIT
"""The rules that `swap` applies, one file a family; a rule that comes first takes a piece of code first."""

from . import channels, linear, norm, permutation, pool
from .rule import Replacement, Rule

__all__ = ["DEFAULT", "OPTIONAL", "Replacement", "Rule"]

DEFAULT: tuple[Rule, ...] = channels.RULES + permutation.RULES + pool.RULES + norm.RULES + linear.RULES
OPTIONAL: tuple[Rule, ...] = pool.OPTIONAL
