# SPDX-License-Identifier: MIT
"""Contexts of shapes.detect within each other, in several threads, and around other finders."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

import opswap


def test_tolist_is_the_tensor_s_own_again() -> None:
    """After nested contexts, errors and contexts of several threads that end in another order."""
    own, inside = Tensor.tolist, threading.Event()
    done = threading.Event()

    def other() -> None:
        with opswap.shapes.detect() as theirs:
            inside.set()
            done.wait(60)
            assert torch.arange(3).tolist() == [0, 1, 2]
        assert [s.op for s in theirs.sites] == ["tolist"]

    thread = threading.Thread(target=other)
    with pytest.raises(KeyError), opswap.shapes.detect() as outer:
        thread.start()
        assert inside.wait(60)
        with opswap.shapes.detect() as inner:
            assert torch.arange(2).tolist() == [0, 1]
        assert torch.arange(4).tolist() == [0, 1, 2, 3]
        raise KeyError
    assert Tensor.tolist is not own, "the other thread still watches"
    assert torch.arange(2).tolist() == [0, 1]
    done.set()
    thread.join()
    assert Tensor.tolist is own and "tolist" not in vars(Tensor)
    assert [sum(s.count for s in r.sites) for r in (outer, inner)] == [2, 1]


def test_a_loop_is_seen_through_other_contexts() -> None:
    detect = opswap.shapes.detect
    with detect() as outer, opswap.layout.check(), opswap.memory.denormals(), detect() as inner:
        for _ in torch.arange(3):
            pass
    assert [(s.op, s.status, s.line) for s in outer.sites] == [(s.op, s.status, s.line) for s in inner.sites]
    assert [s.status for s in outer.findings] == ["loop"]


def test_threads_that_ended_are_named_too_and_only_some_of_many() -> None:
    def start(name: str) -> None:
        thread = threading.Thread(target=torch.ones, args=(1,), name=name)
        thread.start()
        thread.join()

    profiled: list[str] = []
    threading.setprofile(lambda *event: profiled.append(threading.current_thread().name))
    hook = threading.getprofile()
    try:
        with opswap.shapes.detect() as outer:
            start("first")
            with opswap.layout.check() as inner:
                for i in range(20):
                    start(f"part {i:02}")
            start("last")
        assert threading.getprofile() is hook
        start("after")
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    parts = ", ".join(f"part {i:02}" for i in range(7))
    (note,) = outer.notes
    assert note.endswith(f"not watched: first, {parts} and 14 more")
    note = next(n for n in inner.notes if "threads" in n)
    assert note.endswith(f"not watched: {parts}, part 07 and 12 more")
    assert {"first", "part 19", "last", "after"} <= set(profiled), (
        "the hook of the user still gets every thread"
    )
