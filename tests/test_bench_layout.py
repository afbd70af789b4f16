# SPDX-License-Identifier: MIT
"""benchmarks/layout.py makes the table of networks in the README of opswap.layout."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest

from opswap.finding.script import InputSize
from opswap.models import shufflenetv2

BENCHMARKS = str(Path(__file__).parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)
import layout  # noqa: E402

sys.path.remove(BENCHMARKS)

pytestmark = pytest.mark.once


def line(text: str) -> int:
    lines, first = inspect.getsourcelines(shufflenetv2._interleave)
    return next(first + i for i, found in enumerate(lines) if text in found)


def test_a_row_names_the_lines_and_the_gains() -> None:
    row = layout.measure("opswap.models:shufflenet_v2_x0_5", InputSize((1, 3, 64, 64)), 1)
    copied = [f"shufflenetv2.py:{line('transpose(1, 2).contiguous()')} clone lost"]
    assert row.lost == {
        "forward": copied,
        "backward": [f"shufflenetv2.py:{line('x.view(n, groups')} clone lost"],
    }
    assert not row.swapped_lost and list(row.steps) == ["contiguous", "channels_last", "swapped"]
    row.steps = {"contiguous": 30.0, "channels_last": 20.0, "swapped": 10.0}
    lost = f"forward: {copied[0]}; backward: {row.lost['backward'][0]}"
    assert layout.table([row])[-1] == f"| shufflenet_v2_x0_5 | {lost} | keeps it | 30 | 1.50 | 3.00 |"


def test_a_network_that_refuses_the_format_has_no_step_in_it() -> None:
    row = layout.measure("opswap.models:lprnet", InputSize((1, 3, 24, 94)), 0)
    assert "max_pool3d_with_indices refused" in row.lost["forward"][0] and not row.error and not row.steps
    failed = layout.measure("opswap.models:lprnet", InputSize((1, 4, 24, 94)), 0)
    assert "4 channels" in failed.error and failed.error in layout.table([failed])[-1]
