# SPDX-License-Identifier: MIT
"""benchmarks/verify_networks.py verifies networks of other libraries over several seeds, and makes a table of it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import opswap

BENCHMARKS = str(Path(__file__).parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)
import networks  # noqa: E402
import verify_networks  # noqa: E402

sys.path.remove(BENCHMARKS)

pytestmark = pytest.mark.once


class Large(nn.Module):
    """Needs images of 128 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, 8), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] < 128:
            raise ValueError("too small")
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))


class Flat(nn.Module):
    """Refuses channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, 32), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return x.view(x.size(0), -1)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(networks._MAKERS, "own", lambda name: {"large": Large, "flat": Flat}[name]())
    return "own"


def test_a_network_holds(library: str) -> None:
    row = verify_networks.measure(library, "large", 3)
    assert row == verify_networks.Row(library, "large", 3, 128, "holds", "holds")
    assert verify_networks.measure(library, "large", 3, ["default"]).exact == ""
    assert verify_networks.measure(library, "flat", 0) == verify_networks.Row(
        library, "flat", 0, 96, "holds", "holds"
    )


def test_what_does_not_hold_or_is_not_there(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(*_: object, **__: object) -> None:
        raise RuntimeError("no\nbecause")

    monkeypatch.setattr(opswap, "verify", verify)
    row = verify_networks.measure(library, "large", 0, ["default"])
    assert row.default == "RuntimeError: no" and not row.error
    assert verify_networks.measure(library, "missing", 0).error.startswith("KeyError")


class Unequal(Large):
    """Computes something else with `opswap.swap`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2.0 if opswap.report(self).swapped else 1.0)


def test_the_reason_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "make", lambda *_: Unequal())
    row = verify_networks.measure(library, "unequal", 0, ["default"])
    assert "; inference, contiguous: output 0 has the largest difference (1.0e+00, stock " in row.default


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        verify_networks.Row("timm", "a", 0, 96, "holds", "holds"),
        verify_networks.Row("timm", "a", 1, 96, "", "holds"),
        verify_networks.Row("timm", "b", 0, 96, "holds", "Error: a | b"),
        verify_networks.Row("timm", "c", 0, error="ImportError: c"),
    ]
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([asdict(row) for row in rows]))
    monkeypatch.setattr(sys, "argv", ["verify_networks.py", "--rows", str(file)])
    verify_networks.main()
    text = capsys.readouterr().out
    assert "3 networks, of 1 every seed held." in text
    assert "| timm | a | 96 | 1 of 1 | 2 of 2 |  |" in text
    assert "| timm | b | 96 | 1 of 1 | 0 of 1 | seed 0: Error: a \\| b |" in text
    assert "| timm | c | 0 |  |  | seed 0: ImportError: c |" in text
