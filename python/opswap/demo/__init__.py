# SPDX-License-Identifier: MIT
"""`opswap demo`: stock and swapped models learn side by side on real images."""

from .run import run
from .settings import DemoError, Settings

__all__ = ["DemoError", "Settings", "run"]
