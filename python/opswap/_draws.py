# SPDX-License-Identifier: MIT
"""Leave the random generators of Python, NumPy and torch as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["generators_kept"]


@contextmanager
def generators_kept(drew: Callable[[], bool] | None = None) -> Iterator[None]:
    """Leave the random generators of Python, NumPy and torch as they were.

    They belong to the process: what other threads draw meanwhile is drawn once more afterwards.

    Args: drew: torch's generators are put back only if it returns True.
    """
    python, numpy = random.getstate(), sys.modules.get("numpy")
    legacy = numpy.random.get_state() if numpy is not None else None
    state = torch.get_rng_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    states = [torch.cuda.get_rng_state(device) for device in devices]
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(legacy)
        if drew is None or drew():
            torch.set_rng_state(state)
            for device, before in zip(devices, states, strict=True):
                torch.cuda.set_rng_state(before, device)
