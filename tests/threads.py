# SPDX-License-Identifier: MIT
"""Code in other threads, and on other numbers of torch's threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from inputs import same_bits

__all__ = ["at_once", "elsewhere", "meanwhile", "on_threads", "same_on_any_threads"]


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """What the calls return, each in a thread of its own, all at once; the first error is raised here."""
    results, errors = [None] * len(works), []

    def run(i: int) -> None:
        try:
            results[i] = works[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive(), "a thread waits for ever"
    if errors:
        raise errors[0]
    return results


def elsewhere(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises in another thread."""
    return at_once(call)[0]


@contextmanager
def meanwhile(step: Callable[[], Any]) -> Iterator[None]:
    """Call `step` again and again in another thread; an error there is raised here."""
    done, errors = threading.Event(), []

    def repeat() -> None:
        try:
            while not done.is_set():
                step()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if errors:
        raise errors[0]


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
