# SPDX-License-Identifier: MIT
"""benchmarks/speed.py times training steps of networks, calls.py eager calls; both make a table."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import opswap
from opswap.memory.switches import reuse_kept

BENCHMARKS = str(Path(__file__).parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)
import calls  # noqa: E402
import speed  # noqa: E402

sys.path.remove(BENCHMARKS)

pytestmark = pytest.mark.once


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_ROUNDS", 1)
    monkeypatch.setattr(speed, "_SECONDS", 0.0)


@pytest.mark.parametrize("name, formats", [("LPRNet", 1), ("U-Net, GroupNorm", 2)])
def test_a_row(name: str, formats: int, short: None) -> None:
    """MaxPool3d of LPRNet does not run in channels_last."""
    with reuse_kept():
        row = speed.measure(name, 32, torch.get_num_threads(), 1)
    assert not row.error
    assert list(row.stock) == ["contiguous", "channels_last"][:formats]
    assert row.swapped > 0.0 and row.ratio[0] == min(row.stock.values()) / row.swapped


def test_a_row_of_inference(short: None) -> None:
    with reuse_kept():
        row = speed.measure("U-Net, GroupNorm", 32, torch.get_num_threads(), 1, inference=True)
    assert not row.error and row.inference
    assert speed.page([row])[0] == "# Inference"


def test_a_network_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, short: None) -> None:
    monkeypatch.setitem(speed.NETWORKS, "missing", lambda: __import__("no_such_library"))
    with reuse_kept():
        row = speed.measure("missing", 32, torch.get_num_threads(), 1)
    assert row.error == "ModuleNotFoundError: No module named 'no_such_library'"


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        speed.Row(
            "A", (2, 3, 8, 8), 1, {"contiguous": 30.0, "channels_last": 20.0}, 10.0, (2.0, 1.9, 2.1), "CPU"
        ),
        speed.Row("B", (2, 3, 8, 8), 1, {"contiguous": 33.0}, 11.0, (3.0, 2.9, 3.1), "CPU"),
        speed.Row("C", error="no library"),
    ]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([asdict(row) for row in rows]))
    monkeypatch.setattr(sys, "argv", ["speed.py", "--rows", str(file)])
    speed.main()
    page = capsys.readouterr().out
    assert "Median 2.50, smallest 2.00." in page
    assert "| A | 2 x 3 x 8 x 8 | 1 | 30 | 20 | 10 | 2.00 | 1.90 to 2.10 |" in page
    assert "| B | 2 x 3 x 8 x 8 | 1 | 33 |  | 11 | 3.00 | 2.90 to 3.10 |" in page
    assert "| C |  | 1 | no library |" in page


def test_every_network_is_swapped() -> None:
    """Of those that need no library."""
    for name in ("ShuffleNetV2 x1.0", "U-Net, GroupNorm"):
        assert opswap.report(opswap.swap(speed.NETWORKS[name]())).swapped


def test_the_cost_of_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both forms of each case agree; a file of another version adds its columns."""
    for ours, stock, tensors in (case for name, case in calls._cases().items() if name != "dropout"):
        torch.testing.assert_close(
            ours(*tensors), stock(*tensors).view_as(ours(*tensors)), rtol=1e-4, atol=1e-4
        )
    file, threads = tmp_path / "out.json", torch.get_num_threads()
    try:
        for more in ("--json", str(file)), ("--before", str(file)):
            monkeypatch.setattr(sys, "argv", ["calls.py", "--seconds", "0", *more])
            calls.main()
    finally:
        torch.set_num_threads(threads)
    first, second = capsys.readouterr().out.split("| function |")[1:]
    assert "before" not in first and second.count("before, ") == 2
    assert set(json.loads(file.read_text())) == set(calls._cases())
