# SPDX-License-Identifier: MIT
"""`python -m opswap layout`: scripts, modules and factories, how they end, and users' mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opswap import cli
from surviving import command

_TRAIN = """
import argparse, sys
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--end", default="")
parser.add_argument("--no-optimizer", action="store_true")
options = parser.parse_args()
assert __name__ == "__main__" and sys.argv[0].endswith("train.py"), sys.argv
import helper_beside_the_script

last = torch.channels_last
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1), nn.Conv2d(4, 4, 3)).to(memory_format=last)
optimizer = None if options.no_optimizer else torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(2, 3, 8, 8).to(memory_format=last)
for epoch in range(options.epochs):
    y = model(x)
    y.backward(torch.ones_like(y))
    try:
        if optimizer is not None:
            optimizer.step()
    except Exception as error:
        print("caught", error)
    print("epoch", epoch, flush=True)
if options.end == "error":
    raise ValueError("a mistake of the script")
if options.end == "interrupt":
    raise KeyboardInterrupt
if options.end == "wait":
    import time
    print("waiting", flush=True)
    time.sleep(600)
if options.end:
    sys.exit(int(options.end) if options.end.isdecimal() else options.end)
"""
_NETS = """
import torch
from torch import nn

def lossy():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1), nn.Conv2d(4, 4, 3))

def kept():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

def words():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4)
        def forward(self, index, image):
            return {"words": self.table(index), "image": image * 2}
    return Words()

def frozen():
    return kept().requires_grad_(False)

number = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(_TRAIN)
    (tmp_path / "scripts" / "helper_beside_the_script.py").write_text("")
    (tmp_path / "layout_nets.py").write_text(_NETS)
    yield tmp_path
    for name in ("layout_nets", "helper_beside_the_script"):
        sys.modules.pop(name, None)


SCRIPT = ("--", "scripts/train.py")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    before = (list(sys.argv), list(sys.path), sys.modules["__main__"])
    status = cli.main(["layout", *arguments])
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_script_runs_as_it_would_and_the_report_follows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, *SCRIPT, "--epochs", "2")
    assert (status, err) == (0, "")
    assert out.index("epoch 1") < out.index("opswap.layout:")
    line = 1 + _TRAIN.split("\n").index("    y = model(x)")
    assert f"scripts/train.py:{line}" in out and "aten._softmax" in out and "2x" in out


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("3", 3, ""),
        ("a reason", 1, "a reason"),
        ("error", 1, "ValueError: a mistake"),
        ("interrupt", 130, "interrupted"),
    ],
)
def test_the_report_follows_whatever_ends_the_script(
    folder: Path, capsys: pytest.CaptureFixture[str], end: str, status: int, message: str
) -> None:
    got, out, err = run(capsys, *SCRIPT, "--end", end)
    assert got == status and "aten._softmax" in out and message in err
    assert "opswap" not in err and "runpy" not in err  # no frames of the tool


def test_strict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--strict", *SCRIPT)[0] == 1
    assert run(capsys, "--strict", *SCRIPT, "--end", "3")[0] == 3
    assert run(capsys, "--strict", "--allow", "_softmax", *SCRIPT)[0] == 0
    assert run(capsys, "--strict", "layout_nets:kept", "--input", "2x3x8x8")[0] == 0
    assert run(capsys, "--strict", "layout_nets:lossy", "--input", "2x3x8x8")[0] == 1


def test_steps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--steps", "2", *SCRIPT, "--epochs", "9")
    assert status == 0 and "epoch 0" in out and "epoch 1" not in out and "caught" not in out
    assert "2x" in out and "aten._softmax" in out


def test_steps_without_an_optimizer_are_backward_passes(folder: Path) -> None:
    done = command(folder, "layout", "--steps", "2", *SCRIPT, "--epochs", "9", "--no-optimizer")
    assert done.returncode == 0, done.stderr
    assert "epoch 1" in done.stdout and "epoch 2" not in done.stdout and "aten._softmax" in done.stdout


def test_ctrl_c(folder: Path) -> None:
    # A shell that starts the tests in the background has them, and all their children, ignore the signal.
    process = subprocess.Popen(
        [sys.executable, "-m", "opswap", "layout", *SCRIPT, "--end", "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        assert any("waiting" in line for line in lines), "the script has ended"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130 and "aten._softmax" in out and "Traceback" not in err


def test_a_forked_child_does_not_report(folder: Path) -> None:
    (folder / "forks.py").write_text(
        "import os, sys\nchild = os.fork()\nif not child:\n    sys.exit(0)\nos.waitpid(child, 0)\n"
    )
    assert command(folder, "layout", "--", "forks.py").stdout.count("opswap.layout:") == 1


def test_a_module(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = folder / "a_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(
        "import sys\nfrom . import __name__ as name\nprint(__name__, name, sys.argv[1:])\n"
    )
    status, out, _ = run(capsys, "--", "-m", "a_package.train", "--rate", "1")
    assert status == 0 and "__main__ a_package ['--rate', '1']" in out and "opswap.layout:" in out


def test_a_factory(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("layout_nets:lossy", "--input", "2x3x8x8", "--json", "report.json", "--plot", "report.png")
    status, out, _ = run(capsys, *arguments, "--backward", "--steps", "3")
    assert status == 0
    sites = json.loads((folder / "report.json").read_text())["sites"]
    assert {s["phase"] for s in sites} == {"forward", "backward"}
    (lost,) = [s for s in sites if s["status"] == "lost" and s["phase"] == "forward"]
    assert lost["module"] == "1" and lost["count"] == 3
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "aten._softmax" in out


def test_a_factory_with_several_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("layout_nets:words", "--input", "2x4:int64", "--input", "2x3x8x8:bfloat16", "--backward")
    assert run(capsys, *arguments)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a script"),
        (("--", "absent.py"), "'absent.py'"),
        (("--", "-m"), "-m needs"),
        (("--", "-m", "absent_module.train"), "'absent_module.train'"),
        (("layout_nets:lossy",), "--input 32x3x224x224"),
        (("layout_nets:absent", "--input", "1x3x8x8"), "has no 'absent'"),
        (("layout_netz:lossy", "--input", "1x3x8x8"), "no module 'layout_netz'"),
        (("layout_nets:number", "--input", "1x3x8x8"), "gave an object of type int"),
        (("layout_nets:lossy", "more", "--input", "1x3x8x8"), "'more'"),
        (("layout_nets:frozen", "--input", "1x3x8x8", "--backward"), "no output"),
        (("--input", "1x3", "--", "scripts/train.py"), "'scripts/train.py'"),
        (("--backward", "--", "scripts/train.py"), "--backward is for"),
    ],
)
def test_mistakes_are_named_without_a_traceback(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert status == 2 and message in err and "Traceback" not in err and "opswap.layout:" not in out


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        (("--steps", "0"), "'0'"),
        (("--steps", "few"), "'few'"),
        (("--input", "1x-3"), "'1x-3'"),
        (("--input", "1x3:floaty"), "'1x3:floaty'"),
        (("--json", "absent/folder.json"), "'absent/folder.json'"),
        (("--plot", "."), "'.'"),
    ],
)
def test_bad_values_are_quoted(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], quoted: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["layout", *arguments, "--", "scripts/train.py"])
    assert stop.value.code == 2 and quoted in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["layout", "--help"])
    printed = capsys.readouterr().out
    assert stop.value.code == 0 and "python3 -m opswap layout -- train.py --epochs 1" in printed


def test_plot_without_matplotlib_names_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = run(capsys, "layout_nets:lossy", "--input", "2x3x8x8", "--plot", "x.png")
    assert status == 2 and "--plot needs matplotlib" in err and not out and not os.path.exists("x.png")
