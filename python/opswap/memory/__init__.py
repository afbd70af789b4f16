# SPDX-License-Identifier: MIT
"""What the process pays for memory and for tiny numbers, for stock models as much as for swapped ones."""

from .counting import denormal_parameters
from .finder import denormals
from .report import DenormalsReport, DenormalsSite
from .switches import flush_denormals, reuse_freed

__all__ = [
    "DenormalsReport",
    "DenormalsSite",
    "denormal_parameters",
    "denormals",
    "flush_denormals",
    "reuse_freed",
]
