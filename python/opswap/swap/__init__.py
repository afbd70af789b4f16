# SPDX-License-Identifier: MIT
"""Find the operators in other people's modules, prove what they do, and replace them.

`capture` writes the paths of a forward as graphs, `match` finds candidates in them, `prove` shows what they compute
and `rewrite` gives the module a new forward. `plan` decides where, `rules` hold what to look for, `runtime` is what
the new forwards call; `verify` compares whole models, `dynamo` serves torch.compile, `costs` knows what wins.
"""

from .api import report, scan, swap, unswap, verify
from .costs import tune
from .dynamo import dynamo_backend
from .match import Region
from .prove import Refusal
from .report import Check, Report, Site
from .rules import Replacement, Rule
from .verify import VerificationError

__all__ = [
    "Check",
    "Refusal",
    "Region",
    "Replacement",
    "Report",
    "Rule",
    "Site",
    "VerificationError",
    "dynamo_backend",
    "report",
    "scan",
    "swap",
    "tune",
    "unswap",
    "verify",
]
