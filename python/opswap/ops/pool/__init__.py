# SPDX-License-Identifier: MIT
"""Pooling: max, average, adaptive and global, in any memory format."""

from .adaptive import adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d
from .avg_pool import avg_pool2d, avg_pool3d
from .global_max import global_max_pool2d
from .max_pool import max_pool2d, max_pool3d

__all__ = [
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool2d",
    "avg_pool3d",
    "global_max_pool2d",
    "max_pool2d",
    "max_pool3d",
]
