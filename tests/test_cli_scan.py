# SPDX-License-Identifier: MIT
"""The options of `opswap scan`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opswap import cli

MODELS = '''
import torch
from torch import nn

class Reshaped(nn.Module):
    """Its sizes are constants, so that only a run can show them."""

    def forward(self, x):
        return x.view(-1, 2, 6, 4, 8).transpose(1, 2).reshape(-1, 12, 4, 8)

class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def reshaped():
    return nn.Sequential(nn.Conv2d(12, 12, 1), Reshaped())

def mixed():
    return nn.Sequential(nn.ChannelShuffle(2), Branching())
'''


@pytest.fixture(autouse=True)
def _models(module_file: Callable[[str, str], Path]) -> None:
    module_file("scanned_models", MODELS)


def test_an_input_shows_the_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scan", "scanned_models:reshaped", "--exact"]) == 1
    assert "does not run on probes" in capsys.readouterr().out
    assert cli.main(["scan", "scanned_models:reshaped", "--input", "2x12x4x8"]) == 0
    assert "channel_shuffle" in capsys.readouterr().out


def test_an_input_that_does_not_fit_fails_clearly(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scan", "scanned_models:reshaped", "--input", "2x5x4x8"]) == 2
    assert "does not run on example_inputs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["scan", "scanned_models:reshaped", "--input", "2,3"])
    assert "expected sizes such as 32x3x224x224 or 8x16:int64, got '2,3'" in capsys.readouterr().err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scan", "scanned_models:reshaped", "--input", "2x12x4x8", "--json", "-", "--exact"]) == 0
    (site,) = json.loads(capsys.readouterr().out)["swapped"]
    assert site["path"] == "1" and site["source"].split(":")[0].endswith("scanned_models.py")


def test_strict_fails_where_something_could_not_be_analysed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scan", "scanned_models:mixed"]) == 0
    assert cli.main(["scan", "scanned_models:mixed", "--strict"]) == 1
    assert "control flow depends on the elements of a tensor" in capsys.readouterr().out
