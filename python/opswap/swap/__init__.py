# SPDX-License-Identifier: MIT
"""Find the operators in other people's modules, prove what they do, and replace them.

The public functions:
    api          swap, scan, report, unswap, verify
    explain      which replacements run on given inputs, and which condition stops the others
    optimize     swap, memory format, reused memory and flushed denormals in one call
    verify       compare a stock and a swapped model for a step; ordered_draws gives both the same random numbers
    report       the classes Report, Site and Check
    rule         what the author of a rule sees: Rule, Region, Replacement, Refusal

Folders; a folder imports only from those below it (compile is on the level of api):
    compile/     the backend of torch.compile
    planning/    from a model to a plan: which modules to rewrite, with which rules, and the report
    rewriting/   from a plan to the model: the text of new forwards, and the classes that carry them
    replay/      what a frozen model runs while nothing has changed: the kernels of a former call
    rules/       what to look for and what replaces it, one file or folder per family
    capture/     from a forward to graphs: its paths, their conditions, and all that it reads
    graph/       what is known of the nodes of a graph
    runtime/     what a swapped model checks on every call, and what it does if something has changed
"""

from .api import report, scan, swap, unswap, verify
from .compile.backend import dynamo_backend
from .explain import Explanation, Outcome, explain
from .optimize import optimize
from .report import Check, Part, Report, Site
from .rule import Refusal, Region
from .rules import Replacement, Rule
from .tuning import tune
from .verify import VerificationError

__all__ = [
    "Check",
    "Explanation",
    "Outcome",
    "Part",
    "Refusal",
    "Region",
    "Replacement",
    "Report",
    "Rule",
    "Site",
    "VerificationError",
    "dynamo_backend",
    "explain",
    "optimize",
    "report",
    "scan",
    "swap",
    "tune",
    "unswap",
    "verify",
]
