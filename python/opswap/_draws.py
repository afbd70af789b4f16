# SPDX-License-Identifier: MIT
"""Leave the random generators of torch and Python as they were."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["draws_undone"]


@contextmanager
def draws_undone() -> Iterator[None]:
    """What is drawn in this context is drawn again after it.

    Beside another thread, which may have drawn too, the generators go on instead: that thread would get its numbers
    twice. A generator that nobody drew from is not touched.
    """
    python, state = random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        if threading.active_count() == 1:
            if random.getstate() != python:
                random.setstate(python)
            if not torch.equal(torch.get_rng_state(), state):
                torch.set_rng_state(state)
