# SPDX-License-Identifier: MIT
"""Channel shuffles in any spelling, with the torch.cat before and the cut after, if there are any.

regions      candidates in a graph: nodes that only move the elements of one tensor
proof        what a candidate computes, shown by running it on numbered elements
conditions   evaluated in the rewritten forward: whether the proof covers the tensors of this call
rule         the rules
"""

from .rule import RULES

__all__ = ["RULES"]
