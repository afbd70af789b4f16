# SPDX-License-Identifier: MIT
"""Code on other numbers of torch's threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from inputs import same_bits

__all__ = ["on_threads", "same_on_any_threads"]


@contextmanager
def on_threads(count: int | None = None) -> Iterator[None]:
    """With so many threads; None: as many as before. Afterwards as many as before, whatever is set inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same_on_any_threads(run: Callable[[], Sequence[Tensor]], most: int = 3) -> Sequence[Tensor]:
    """What `run` returns; fails if the bits depend on the number of threads, from one to `most`."""
    results = []
    for count in range(1, most + 1):
        with on_threads(count):
            results.append(run())
    for count, other in enumerate(results[1:], 2):
        for i, (a, b) in enumerate(zip(results[0], other, strict=True)):
            assert same_bits(a, b), f"tensor {i} of {len(other)} differs with {count} threads"
    return results[0]
