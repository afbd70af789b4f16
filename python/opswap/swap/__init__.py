# SPDX-License-Identifier: MIT
"""Find the operators in other people's modules, prove what they do, and replace them.

The public functions:
    api                 swap, scan, report, unswap, verify
    explain             which replacements run on given inputs, and which condition stops the others
    dynamo, specialise  the backend of torch.compile; copies of its graphs with sizes as numbers
    costs               which rules are faster: recorded gains, and those of `tune`
    report              the classes Report, Site and Check
    planned             the report that a swap left on the model, and what changed since
    verify              compare a stock and a swapped model for a step

From a model to a plan:
    plan                which modules and Sequentials to rewrite
    shell, quiet        copies of the modules to analyse; runs of copies without hooks and random numbers
    capture, tracer     the paths of one forward as graphs, with the conditions of each
    bytecode            which names a function reads and writes, and what no trace can show; imports no torch
    follow, reach       the user's functions that a trace runs; everything outside that they can read
    purity              code whose answers are constants, and code whose answers may change
    concrete, written   tensors that a trace meets or makes; writes of a trace, found and reverted
    facts, shapes       what code asks of sizes and dtypes; sizes seen in one run
    einops_backend      einops on the proxies of a capture
    match, prove        candidates in a graph; what a candidate computes, shown by running it
    alias, demand       code that sees whether a view became a copy; code that needs contiguous tensors
    rules/              what to look for and what replaces it, one file per family
    hints               what to write by hand if no capture can see an operator

From a plan to the model:
    carry_out           change the model, completely or not at all
    rewrite             the text of a new forward, and the generated subclass of a user's class
    instance_forward    a new forward on one layer of torch, whose class stays
    door                convert parameters and inputs to a memory format, and back

While a swapped model runs:
    runtime             the conditions that a new forward evaluates
    state, outside      what is watched in a module, and outside of the model
    snapshot            copies of Python values, and whether a value still equals its copy
    fallback            called when the original runs: count, notify `explain`, log
    reasons             the first condition that fails, in words
"""

from .api import report, scan, swap, unswap, verify
from .compile.backend import dynamo_backend
from .explain import Explanation, Outcome, explain
from .graph.calls import Region
from .planning.gains import tune
from .report import Check, Report, Site
from .rules import Replacement, Rule
from .rules.proof import Refusal
from .verify import VerificationError

__all__ = [
    "Check",
    "Explanation",
    "Outcome",
    "Refusal",
    "Region",
    "Replacement",
    "Report",
    "Rule",
    "Site",
    "VerificationError",
    "dynamo_backend",
    "explain",
    "report",
    "scan",
    "swap",
    "tune",
    "unswap",
    "verify",
]
