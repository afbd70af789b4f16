# SPDX-License-Identifier: MIT
"""What the torch that runs the tests can do itself."""

from __future__ import annotations

import re

import pytest
import torch

__all__ = ["TORCH", "before"]

# (major, minor)
TORCH = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))


def before(major: int, minor: int, lacks: str) -> pytest.MarkDecorator:
    """Skip on a torch before this one, which `lacks` something that a test is about."""
    return pytest.mark.skipif((major, minor) > TORCH, reason=f"torch before {major}.{minor} {lacks}")
