# SPDX-License-Identifier: MIT
"""`opswap verify`: equality and speed of a user's model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from opswap import cli

MODELS = """
from dataclasses import replace

import torch
from torch import nn

import opswap
from opswap.swap import Replacement
from opswap.swap.rules import DEFAULT


class Shuffle(nn.Module):
    def forward(self, x):
        return nn.functional.channel_shuffle(x, 3)


class Shift(nn.Module):
    # For one image: no gradient is a sum, whose rounding would depend on the memory format.
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(6, 4, 5))

    def forward(self, x):
        return x + self.bias


def shuffled():
    return nn.Sequential(Shift(), Shuffle(), nn.ReLU())


def deep_pool():
    return nn.Sequential(nn.Conv2d(4, 6, 3, 1, 1), nn.MaxPool3d((1, 3, 3), (1, 1, 1)), Shuffle())


class Frozen(nn.Module):
    def forward(self, indices):
        return torch.ones(4)[indices]


def nothing():
    return nn.Linear(6, 3)


def frozen():
    return nn.Sequential(Frozen())


def wrong():
    def spoiled(rule):
        def prove(region, shapes):
            found = rule.prove(region, shapes)
            return Replacement(found.condition, "channel_shuffle(x0, 3) * 1.01", found.names)

        return replace(rule, prove=prove)

    rules = [spoiled(rule) for rule in DEFAULT if rule.name == "channel_shuffle"]
    return opswap.swap(shuffled(), rules=rules, strict=True)
"""
QUICK = ("--seconds", "0.01")


@pytest.fixture(autouse=True)
def folder(module_file: Callable[[str, str], Path]) -> Path:
    return module_file("verified_models", MODELS)


def lines_of(printed: str) -> dict[str, str]:
    """The rows of the table, by what they begin with."""
    return {line.partition("  ")[0]: line for line in printed.splitlines()}


@pytest.mark.parametrize("dtype", [None, "float64", "bfloat16"])
def test_one_table(
    dtype: str | None, every_rule_applies: None, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--exact", *(("--dtype", dtype) if dtype else ()), "--json", "out.json", *QUICK)
    assert cli.main(["verify", "verified_models:shuffled", "--input", "1x6x4x5", *options]) == 0
    printed = capsys.readouterr().out
    assert f"1x6x4x5 {dtype or 'float32'}" in printed and printed.rstrip().endswith("holds: bit-equal")
    rows = lines_of(printed)
    assert "1 place, bit-equal" in rows["swapped: channel_shuffle"]
    for mode in ("train", "inference"):
        assert re.search(r"bit-equal +\S+ +\S+ +[\d.]+x +[\d.]+-[\d.]+$", rows[f"{mode}, contiguous"])
    assert {
        "eval, contiguous",
        "train, channels_last",
        "eval, channels_last",
        "inference, channels_last",
    } <= set(rows)
    assert "\x1b" not in printed
    found = json.loads((folder / "out.json").read_text())
    assert found["holds"] and found["swapped"][0]["rule"] == "channel_shuffle" and len(found["checks"]) == 6
    assert set(found["times"]) == {"train, contiguous", "inference, contiguous"}
    assert all(t["times_faster"]["samples"] >= 5 for t in found["times"].values())


def test_channels_last_is_timed_against_the_faster_format_of_stock(
    every_rule_applies: None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verified_models:shuffled", "--input", "1x6x4x5", "--channels-last", "--json", "-", *QUICK]
    assert cli.main(["verify", *arguments]) == 0
    times = json.loads(capsys.readouterr().out)["times"]
    assert set(times) == {"train, channels_last", "inference, channels_last"}
    assert {t["best_stock"] for t in times.values()} <= {"contiguous", "channels_last"}


def test_a_stock_model_that_refuses_channels_last(
    every_rule_applies: None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verified_models:deep_pool", "--input", "2x4x5x6", "--channels-last", "--json", "-", *QUICK]
    assert cli.main(["verify", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {t["best_stock"] for t in found["times"].values()} == {"contiguous"}


def test_what_does_not_hold_fails(one_thread: None, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--threads", "1", *QUICK)
    assert cli.main(["verify", "verified_models:wrong", "--input", "1x6x4x5", *options]) == 1
    printed = capsys.readouterr().out
    assert "FAILS: error " in printed and "DOES NOT HOLD" in printed and "faster" in printed


def test_a_model_in_which_nothing_is_swapped(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "verified_models:nothing", "--input", "2x6", *QUICK]) == 1
    assert "nothing was swapped" in capsys.readouterr().out
    assert cli.main(["verify", "verified_models:frozen", "--input", "5:int64", *QUICK]) == 1
    assert "nothing was swapped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verified_models:absent", "--input", "2x6"], "has no 'absent'"),
        (["absent_models:net", "--input", "2x6"], "no module 'absent_models'"),
        (["verified_models:nothing", "--input", "2x5"], "does not run on 2x5 float32: RuntimeError"),
        (["verified_models:nothing", "--input", "2x6:int64"], "does not run on 2x6 int64"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("opswap verify: error: ") and message in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        (["net", "--input", "2x6"], "'net'"),
        (["a:b"], "--input"),
        (["a:b", "--input", "2x6", "--dtype", "int8"], "'int8'"),
        (["a:b", "--input", "2x6", "--seconds", "nan"], "'nan'"),
        (["a:b", "--input", "2x6", "--json", "no/such/out.json"], "'no/such/out.json'"),
    ],
)
def test_wrong_arguments(arguments: list[str], quoted: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", *arguments])
    assert stop.value.code == 2 and quoted in capsys.readouterr().err
