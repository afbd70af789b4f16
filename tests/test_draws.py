# SPDX-License-Identifier: MIT
"""Random generators after code that draws for itself."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from opswap._draws import draws_undone
from opswap.merge.measure import measuring


def test_draws_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    python, state = random.getstate(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), draws_undone():
        torch.rand(3)
        random.random()
        raise ZeroDivisionError
    assert random.getstate() == python and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("context", [draws_undone, lambda: measuring("training")], ids=["plain", "measuring"])
def test_another_thread_does_not_draw_twice(context) -> None:  # type: ignore[no-untyped-def]
    drawn = []
    drew, done = threading.Event(), threading.Event()

    def trains() -> None:
        drawn.append(torch.rand(4))
        drew.set()
        done.wait(60)
        drawn.append(torch.rand(4))

    thread = threading.Thread(target=trains)
    with context():
        thread.start()
        assert drew.wait(60)
    done.set()
    thread.join()
    assert not torch.equal(*drawn)
