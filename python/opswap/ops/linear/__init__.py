# SPDX-License-Identifier: MIT
"""One linear map per group, all groups in one call."""

from ._flops import register_flops
from ._run import reference
from .grouped_linear import grouped_linear

__all__ = ["grouped_linear", "reference", "register_flops"]
