# SPDX-License-Identifier: MIT
"""The demo on two processes."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("rich")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from opswap import cli
from opswap.demo import ddp

_QUICK = ["demo", "--only", "ddp", "--threads", "1", "--image-size", "32", "--ddp-steps", "2"]


def test_two_processes_train_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*_QUICK, "--batch-size", "8"]) == 0
    printed = capsys.readouterr().out
    assert "2 processes, 1 thread(s) each, 8 images in a step" in printed
    assert "after 2 steps all 170 parameters are equal bit for bit" in printed
    assert float(re.search(r"to (\S+) of the largest", printed)[1]) <= 1e-10
    assert re.search(r"speed: \d+ images per second", printed)


def test_a_batch_that_cannot_be_shared_out_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*_QUICK, "--batch-size", "7"]) == 1
    assert "7 images cannot be divided among 2 processes" in capsys.readouterr().err


def test_without_torchrun_it_says_how_to_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(SystemExit) as stop:
        ddp.main([])
    assert stop.value.code == 2
    assert "torchrun --standalone --nproc-per-node 2 -m opswap.demo.ddp" in capsys.readouterr().err
