# SPDX-License-Identifier: MIT
"""The commands of the finders, alike: scripts that end in every way, files that they write, users' mistakes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opswap import cli

COMMANDS = ["layout", "shapes", "denormals"]
# Each finder finds something: a softmax that loses channels_last, a boolean index, denormal weights.
SCRIPT = """
import sys
import torch
from torch import nn

def found():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1), nn.Conv2d(4, 4, 1, bias=False), Chosen())
    net[2].weight.data[0] = 1e-40
    return net

class Chosen(nn.Module):
    def forward(self, x):
        return x[x > -1000.0]

clean = nn.ReLU()

class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("a mistake of the model")

if __name__ == "__main__":
    last = torch.channels_last
    net = found().to(memory_format=last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for step in range(3):
        net(torch.randn(2, 3, 8, 8).to(memory_format=last)).sum().backward()
        print("step", step)
        optimizer.step()
    if sys.argv[1:] == ["interrupt"]:
        raise KeyboardInterrupt
    if sys.argv[1:] == ["error"]:
        raise ValueError("a mistake of the script")
"""


@pytest.fixture(autouse=True)
def folder(module_file: Callable[[str, str], Path]) -> Path:
    return module_file("finding_nets", SCRIPT)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("end", "status"), [("", 0), ("interrupt", 130), ("error", 1)])
def test_a_script_is_reported_whatever_ends_it(
    command: str, end: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = list(sys.argv), list(sys.path)
    assert cli.main([command, "--", "finding_nets.py", *filter(None, [end])]) == status
    printed = capsys.readouterr()
    assert f"opswap.{'memory' if command == 'denormals' else command}: " in printed.out.partition("step 2")[2]
    assert (list(sys.argv), list(sys.path)) == before
    assert ("a mistake of the script" in printed.err) is (end == "error")


@pytest.mark.parametrize("command", COMMANDS)
def test_steps_files_and_strict(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--json", "out.json", "--plot", "out.png")
    assert cli.main([command, "--steps", "2", "--strict", *files, "--", "finding_nets.py"]) == 1
    printed = capsys.readouterr().out
    assert "step 1" in printed and "step 2" not in printed
    found = json.loads((folder / "out.json").read_text())
    assert (
        found["sites"]
        and {"status", "op", "module", "file", "line", "phase", "hint"} < found["sites"][0].keys()
    )
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    assert cli.main([command, "--strict", "--allow", "*", "--", "finding_nets.py"]) == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_may_leave_its_folder(command: str, folder: Path) -> None:
    """As under python, its own path is absolute, and its lines are found."""
    code = """
import os, torch

def step(x):
    n = int(x.sum())
    return x[:n]

where = os.path.abspath(__file__)
os.chdir("inner")
assert os.path.abspath(__file__) == where
step(torch.ones(3))
"""
    (folder / "inner").mkdir()
    (folder / "inner" / "leaves.py").write_text(code)
    here = os.getcwd()
    try:
        assert cli.main([command, "--json", "out.json", "--", os.path.join("inner", "leaves.py")]) == 0
    finally:
        os.chdir(here)
    found = json.loads((folder / "out.json").read_text())
    assert [s["status"] for s in found["sites"]] == (["size"] if command == "shapes" else [])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_factory(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--input", "2x3x8x8", "--strict")
    assert cli.main([command, "finding_nets:found", *size, "--backward"]) == 1
    assert cli.main([command, "finding_nets:clean", *size]) == 0
    capsys.readouterr()
    assert cli.main([command, "finding_nets:Fails", *size]) == 1
    printed = capsys.readouterr()
    assert "a mistake of the model" in printed.err and "opswap." in printed.out


@pytest.mark.parametrize("command", COMMANDS)
def test_mistakes(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--backward", "--", "finding_nets.py"], "--backward is for a package.module:factory"),
        (["--", "absent.py"], "'absent.py'"),
        (["finding_nets:found"], "needs at least one --input"),
    ):
        assert cli.main([command, *words]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([command, "--plot", "out.png", "--", "finding_nets.py"]) == 2
    assert f"opswap {command}: error: --plot needs matplotlib" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0 and f"python3 -m opswap {command} -- train.py" in capsys.readouterr().out
