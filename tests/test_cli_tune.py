# SPDX-License-Identifier: MIT
"""`opswap tune`: both measurements, what they keep, and what is printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import opswap
from opswap import cli
from opswap.swap.planning import gains
from threads import on_threads

Calls = list[tuple[str, int, int]]


@pytest.fixture(autouse=True)
def recorded_gains() -> None:
    """The tables are written here."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, two rules and one convolution."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tune, merge_tune = sys.modules[opswap.tune.__module__], sys.modules["opswap.merge.tune"]
    few = tuple(rule for rule in tune.DEFAULT if rule.name in ("channel_shuffle", "amax"))
    monkeypatch.setattr(tune, "DEFAULT", few)
    monkeypatch.setattr(tune, "OPTIONAL", ())
    for name, value in (("_CHANNELS", ((4, 4),)), ("_BRANCHES", (2,)), ("_INPUTS", ((1, 3),))):
        monkeypatch.setattr(merge_tune, name, value)
    yield tmp_path / "opswap"
    gains.forget_tables()


@pytest.mark.parametrize("only", ["swap", "merge", None])
def test_what_is_measured_is_kept_and_printed(
    only: str | None, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--only", only] if only else []
    assert cli.main(["tune", *options, "--rounds", "1", "--json", str(cache.parent / "out.json")]) == 0
    printed = capsys.readouterr().out
    found = json.loads((cache.parent / "out.json").read_text())
    assert set(found) == ({only} if only else {"swap", "merge"})
    files = {"swap": cache / "costs.json", "merge": cache / "merge_costs.json"}
    for name, file in files.items():
        assert file.exists() is (name in found)
        assert (f"kept in {file}" in printed) is (name in found)
        if name in found:
            assert json.loads(file.read_text())["gains"] == found[name]
    assert ("amax" in printed) is ("swap" in found)
    assert ("training, contiguous, 1 thread" in printed) is ("merge" in found)
    assert "\x1b" not in printed


def test_json_alone_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with on_threads():
        assert cli.main(["tune", "--threads", "1", "--rounds", "1", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["swap"]) == {"channel_shuffle", "amax"}


def test_progress_names_every_step() -> None:
    calls: Calls = []
    opswap.tune(rounds=1, progress=lambda *call: calls.append(call))
    assert sorted(calls[i][0] for i in (0, 1)) == ["amax", "channel_shuffle"]
    assert [call[1:] for call in calls] == [(0, 2), (1, 2)]
    calls.clear()
    opswap.merge.tune(seconds=0.0, progress=lambda *call: calls.append(call))
    assert [call[1] for call in calls] == list(range(len(calls))) and {call[2] for call in calls} == {
        len(calls)
    }


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cli.main(["tune", "--only", "swap", "--rounds", "1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("opswap tune: ") and "Traceback" not in error


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$XDG_CACHE_HOME, or that of platformdirs."""
    from platformdirs import user_cache_path

    assert gains.cache_file() == tmp_path / "opswap" / "costs.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert gains.cache_file() == user_cache_path("opswap", appauthor=False) / "costs.json"
    assert str(tmp_path / "home") in str(gains.cache_file())
