# SPDX-License-Identifier: MIT
"""What all commands have in common: help with examples and exit statuses, JSON, one line for a user's mistake."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

import opswap
from opswap import _command_line, cli, doctor, torch_defects
from opswap.memory import page_faults
from opswap.memory.page_faults import AllocatorCost, Faults
from opswap.torch_defects import Outcome

COMMANDS = ["demo", "scan", "verify", "tune", "bench", "layout", "shapes", "denormals", "doctor"]


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert re.findall(r"^    (\w+)(?: |$)", capsys.readouterr().out, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_parse(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(rf"^  python3 -m opswap ({command}.*)$", help_of(command, capsys), re.MULTILINE)
    assert examples
    for example in examples:
        assert cli._parser().parse_args(shlex.split(example)).command == command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_exit_statuses_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capsys)
    statuses = re.findall(r"^  (\d+) +\S", text.partition("exit status:")[2], re.MULTILINE)
    assert statuses == ["0", "1", "2", "130"]
    assert "--json FILE" in text and "\x1b" not in text


def test_the_readme_has_every_command() -> None:
    text = (Path(opswap.__file__).parent / "commands" / "README.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_does_not_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--json", "no/such/folder/out.json"])
    assert stop.value.code == 2
    assert "the folder of 'no/such/folder/out.json' does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (_command_line.UsageError("no such thing: 'x'"), 2, "opswap doctor: error: no such thing: 'x'\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_no_traceback(
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> list[str]:
        raise error

    monkeypatch.setattr(page_faults, "_SIZE", (2, 3, 32, 32))
    monkeypatch.setattr(doctor, "check_kernels", fail)
    assert cli.main(["doctor"]) == status
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("faults", [[], ["avx2: wrong"]])
def test_doctor_as_json(
    faults: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "check_kernels", lambda: faults)
    outcomes = [Outcome("a convolution", "ended by signal 6", "keep away")]
    monkeypatch.setattr(torch_defects, "try_all", lambda: outcomes)
    cost = AllocatorCost(Faults(2.0, 1.0), None)
    monkeypatch.setattr(page_faults, "allocator_cost", lambda: cost)
    assert cli.main(["doctor", "--json", "-"]) == bool(faults)
    found = json.loads(capsys.readouterr().out)
    assert found["faults"] == faults and found["machine"]["opswap"] == opswap.__version__
    assert found["torch_defects"] == [dataclasses.asdict(outcome) for outcome in outcomes]
    assert cli.main(["doctor", "--json", str(tmp_path / "out.json")]) == bool(faults)
    assert json.loads((tmp_path / "out.json").read_text()) == found


@pytest.mark.parametrize("command", ["layout", "shapes", "denormals"])
def test_a_finders_report_as_json_alone(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text("import torch\ntorch.ones(2)[torch.tensor([True, False])]\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main([command, "--json", "-", "--", "script.py"]) == 0
    assert "sites" in json.loads(capsys.readouterr().out)


def test_a_default_is_shown_only_if_there_is_one() -> None:
    parser = _command_line.add_command(
        argparse.ArgumentParser().add_subparsers(),
        "try",
        help="",
        description="",
        examples="try",
        statuses={0: "done"},
        run=lambda arguments: 0,
    )
    parser.add_argument("--number", default=3, help="a number")
    parser.add_argument("--nothing", help="not given")
    parser.add_argument("--flag", action="store_true", help="on")
    text = parser.format_help()
    assert "a number (default: 3)" in text and text.count("default") == 1


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1.0), ("0.25", 0.25), ("0", None), ("-1", None), ("inf", None), ("x", None)]
)
def test_positive_numbers(text: str, value: float | None) -> None:
    if value is not None:
        assert _command_line.positive_number(text) == value
        return
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}'"):
        _command_line.positive_number(text)


def test_what_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its extra is named; an error of an installed module is the module's own."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(_command_line.UsageError, match=r"needs matplotlib, .* 'opswap\[bench\]'"):
        _command_line.require("matplotlib", "--plot", "bench")
    assert _command_line.require("json", "it", "demo") is json
    (tmp_path / "broken_module.py").write_text("import absent_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="absent_dependency"):
        _command_line.require("broken_module", "it", "demo")
