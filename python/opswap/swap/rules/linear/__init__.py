# SPDX-License-Identifier: MIT
"""One linear map per group, in one call.

products     einsum, a product with the weight that is summed, a list of Linears
slices       a loop that writes each group into its slice of a result
conditions   evaluated in the rewritten forward: shapes that fit, sizes for which it is faster, memory that is not
shared
"""

from . import products, slices

__all__ = ["RULES"]

RULES = products.RULES + slices.RULES
