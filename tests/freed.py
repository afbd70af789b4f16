# SPDX-License-Identifier: MIT
"""Whether a model goes without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from torch import nn

__all__ = ["assert_freed_at_once"]


def assert_freed_at_once(make: Callable[[], nn.Module]) -> None:
    """A model that nobody refers to is freed by its counts of references alone."""
    model = make()
    alive = [weakref.ref(m) for m in model.modules()] + [weakref.ref(p) for p in model.parameters()]
    gc.collect()
    gc.disable()
    try:
        del model
        assert [made() for made in alive if made() is not None] == []
    finally:
        gc.enable()
