# SPDX-License-Identifier: MIT
"""Which line loses channels_last, what that costs, and what to change; see the README beside this file."""

from .checker import LayoutError, check
from .report import LayoutReport, LayoutSite

__all__ = ["LayoutError", "LayoutReport", "LayoutSite", "check"]
