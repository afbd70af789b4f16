# SPDX-License-Identifier: MIT
"""Types of command-line arguments that several commands have."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

__all__ = ["at_least_one", "writable_file"]


def at_least_one(text: str) -> int:
    """A positive int. Raises: ArgumentTypeError."""
    if not (text.isdecimal() and text.isascii() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def writable_file(text: str) -> Path:
    """The path of a file that can be written. Raises: ArgumentTypeError."""
    path = Path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file name, got {text!r}")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder of {text!r} does not exist")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written")
    return path
