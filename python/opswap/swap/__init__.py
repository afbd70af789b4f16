# SPDX-License-Identifier: MIT
"""Find the operators in other people's modules, prove what they do, and replace them.

`capture` writes a forward as a graph, `match` finds candidates in it, `prove` shows what they compute and
`rewrite` gives the module a new forward. `plan` decides where, `rules` hold what to look for, `runtime` is
what the new forwards call.
"""

from .api import report, scan, swap, unswap
from .report import Report, Site
from .rules import Replacement, Rule

__all__ = ["Replacement", "Report", "Rule", "Site", "report", "scan", "swap", "unswap"]
