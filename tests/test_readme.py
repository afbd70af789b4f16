# SPDX-License-Identifier: MIT
"""The README of the project and of its folders: code blocks run, links lead somewhere, commands exist."""

from __future__ import annotations

import importlib.util
import posixpath
import re
import shlex
from pathlib import Path, PurePosixPath

import pytest

import opswap
from opswap.cli import main

ROOT = Path(__file__).parents[1]
PACKAGE = Path(opswap.__file__).parent
READMES = {
    f"python/opswap/{path.parent.name}/README.md": path for path in sorted(PACKAGE.glob("*/README.md"))
} | {name: ROOT / name for name in ("README.md", "csrc/README.md", "benchmarks/README.md")}

# Libraries of recipes that the tests do not need otherwise.
OPTIONAL = re.compile(r"^import (lightning|accelerate|timm)", re.MULTILINE)

pytestmark = pytest.mark.once


def located(path: str) -> Path:
    """Where a path of the repository lies: the package may be installed elsewhere."""
    inner = PurePosixPath(path)
    if inner.is_relative_to("python/opswap"):
        return PACKAGE / inner.relative_to("python/opswap")
    return ROOT / inner


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_every_folder_that_users_read_has_one() -> None:
    assert {"demo", "layout", "merge", "ops", "shapes", "swap"} <= {
        Path(name).parent.name for name in READMES
    }


@pytest.mark.parametrize("name", [name for name, path in READMES.items() if "```python" in path.read_text()])
def test_code_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    for block in python_blocks(READMES[name].read_text()):
        if any(importlib.util.find_spec(library) is None for library in OPTIONAL.findall(block)):
            continue
        exec(compile(block, name, "exec"), names)


@pytest.mark.parametrize("name", READMES)
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", READMES[name].read_text()):
        if not link.startswith("http"):
            assert located(posixpath.normpath(posixpath.join(posixpath.dirname(name), link))).exists(), link


@pytest.mark.parametrize("name", READMES)
def test_commands_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in set(re.findall(r"python3 -m opswap (\w+)", READMES[name].read_text())):
        with pytest.raises(SystemExit) as exit:
            main(shlex.split(f"{command} --help"))
        assert exit.value.code == 0 and command in capsys.readouterr().out


def test_the_first_one_is_short() -> None:
    lines = READMES["README.md"].read_text().splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 240
    for extra, command in ("demo", "python3 -m opswap demo"), ("test", "python3 -m pytest"):
        assert f"    python3 -m pip install torch==2.13.0 '.[{extra}]' && {command}" in lines
