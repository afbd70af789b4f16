# SPDX-License-Identifier: MIT
"""`python3 -m opswap shapes`."""

from __future__ import annotations

import json
from pathlib import Path

from surviving import command

SCRIPT = """
import sys, torch
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for i in range(int(sys.argv[1])):
    y = net(torch.randn(2, 3, 8 + i, 8))
    y[y > 0].sum().backward()
    optimizer.step()
print("end of the script")
"""


def test_command_runs_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--steps", "2", "--json", "out.json", "--strict")
    run = command(tmp_path, "shapes", *options, "--", "train.py", "9")
    assert run.returncode == 1 and "end of the script" not in run.stdout, run.stderr
    assert "train.py:8" in run.stdout and "torch.where(y > 0, y, 0).sum().backward()" in run.stdout
    found = {
        s["status"]: s["count"]
        for s in json.loads((tmp_path / "out.json").read_text())["sites"]
        if s["phase"] == "forward"
    }
    assert found == {"size": 2, "input": 2}
    assert command(tmp_path, "shapes", "--", "train.py", "1").returncode == 0


def test_command_runs_a_factory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = command(
        tmp_path, "shapes", "opswap.models:shufflenet_v2_x0_5", "--input", "1x3x64x64", "--backward"
    )
    assert run.returncode == 0 and "no shape depends on data" in run.stdout
    assert command(tmp_path, "shapes", "--backward", "--", "train.py").returncode == 2
    assert "python3 -m opswap shapes" in command(tmp_path, "shapes", "--help").stdout
