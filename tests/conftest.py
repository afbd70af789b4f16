# SPDX-License-Identifier: MIT
"""Fixtures that every test file shares."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

import opswap
from opswap.swap import costs

TIERS = ("scalar", "avx2", "avx512")


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once on every instruction-set tier."""
    if request.param not in opswap.isa.available():
        pytest.skip(f"this machine, or OPSWAP_ISA, has no {request.param}")
    with opswap.isa.limit(request.param):
        yield request.param


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread, so that sums do not depend on how work is divided."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seed every random generator from the test's name; a failing test shows the number in its output."""
    value = random.Random(request.node.nodeid).randrange(2**31)
    print(f"seed {value}")
    random.seed(value)
    torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True)
def recorded_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are applied whatever was measured on this machine; test_swap_costs.py has fixtures of its own."""
    monkeypatch.setattr(costs, "_table", dict)
