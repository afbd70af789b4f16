# SPDX-License-Identifier: MIT
"""`doctor`: what the allocator costs, and what would help."""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Iterator

import pytest
import torch

import opswap
from opswap import cli, doctor, torch_defects
from opswap.memory import page_faults
from opswap.memory.page_faults import AllocatorCost, Faults, allocator_cost
from surviving import python

pytestmark = pytest.mark.once

# In a process of its own, whose heap has no holes, and without huge pages.
_DOCTOR = """
import ctypes, sys
from opswap import cli, doctor, torch_defects

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE
doctor.check_kernels = torch_defects.try_all = lambda: []
sys.exit(cli.main(["doctor", "--json", "-"]))
"""


@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="another allocator is loaded")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_step_is_measured() -> None:
    found = json.loads(python(_DOCTOR))["page_faults"]
    assert found["now"]["count"] > 20_000 and found["kept"]["count"] < found["now"]["count"] / 4
    assert found["now"]["milliseconds"] > 0
    assert "after opswap.memory.reuse_freed(True), which opswap.optimize calls" in found["advice"]


@pytest.mark.parametrize(
    ("now", "kept", "advice"),
    [
        (5000, 3, "3 (90 ms) after opswap.memory.reuse_freed(True), which opswap.optimize calls"),
        (5000, 4900, "does not reach this allocator: preload tcmalloc"),
        (5000, None, "this C library cannot keep freed memory: preload tcmalloc"),
        (12, None, "freed memory is used again"),
    ],
)
def test_what_would_help(
    now: int,
    kept: int | None,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cost = AllocatorCost(Faults(now, 100.0), None if kept is None else Faults(kept, 90.0))
    monkeypatch.setattr(page_faults, "allocator_cost", lambda: cost)
    monkeypatch.setattr(doctor, "check_kernels", list)
    monkeypatch.setattr(torch_defects, "try_all", list)
    assert cli.main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("page faults ")]
    assert f"{now} per step of ShuffleNetV2 x0.5, 32 x 3 x 224 x 224 (100 ms); " in line and advice in line


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(page_faults, "_SIZE", (2, 3, 32, 32))
    yield


def test_a_library_without_the_switch(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(enabled: bool) -> None:
        raise RuntimeError("no mallopt")

    monkeypatch.setattr(page_faults, "reuse_freed", fail)
    monkeypatch.setattr(page_faults, "_FEW", -1)
    assert allocator_cost().kept is None


def test_nothing_stays_changed(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # a thread of another test may still run
    before, state = opswap.memory.switches.reuses_freed(), torch.get_rng_state()
    allocator_cost()
    assert opswap.memory.switches.reuses_freed() == before
    assert torch.equal(torch.get_rng_state(), state)
