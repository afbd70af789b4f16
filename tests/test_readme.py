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
from opswap.cli import _parser, main

ROOT = Path(__file__).parents[1]
PACKAGE = Path(opswap.__file__).parent
READMES = {
    f"python/opswap/{path.parent.name}/README.md": path for path in sorted(PACKAGE.glob("*/README.md"))
} | {
    name: ROOT / name
    for name in ("README.md", "csrc/README.md", "benchmarks/README.md", "benchmarks/results/README.md")
}

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


def missing_libraries(block: str) -> list[str]:
    return [library for library in OPTIONAL.findall(block) if importlib.util.find_spec(library) is None]


@pytest.mark.parametrize("name", [name for name, path in READMES.items() if "```python" in path.read_text()])
def test_code_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    for block in python_blocks(READMES[name].read_text()):
        if not missing_libraries(block):
            exec(compile(block, name, "exec"), names)


@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_recipes_of_libraries_are_python(library: str) -> None:
    """Skipped by name if the library is not installed: then nothing has run its recipe."""
    blocks = [b for path in READMES.values() for b in python_blocks(path.read_text()) if library in b]
    assert blocks
    for block in blocks:
        compile(block, library, "exec")
        if missing_libraries(block):
            pytest.skip(f"{library} is not installed: its recipe in the README of swap was not run")


def test_every_fenced_block_is_python() -> None:
    """Others would not be run."""
    for name, path in READMES.items():
        fences = re.findall(r"^ *```(.*)$", path.read_text(), re.MULTILINE)
        assert set(fences[::2]) <= {"python"} and set(fences[1::2]) <= {""}, name


def anchors(text: str) -> set[str]:
    """Those that GitHub gives to headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", READMES)
def test_links_lead_somewhere(name: str) -> None:
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", READMES[name].read_text()):
        if link.startswith("http"):
            continue
        path = (
            located(posixpath.normpath(posixpath.join(posixpath.dirname(name), link)))
            if link
            else READMES[name]
        )
        assert path.exists(), link
        assert not anchor or anchor in anchors(path.read_text()), f"{link}#{anchor}"


def test_pages_of_results_have_rows() -> None:
    pages = [p for p in (ROOT / "benchmarks" / "results").glob("*.md") if p.name != "README.md"]
    assert len(pages) >= 4 and all("\n| --- |" in page.read_text() for page in pages)


@pytest.mark.parametrize("name", READMES)
def test_commands_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in set(re.findall(r"python3 -m opswap (\w+)", READMES[name].read_text())):
        with pytest.raises(SystemExit) as exit:
            main(shlex.split(f"{command} --help"))
        assert exit.value.code == 0 and command in capsys.readouterr().out


@pytest.mark.parametrize("name", READMES)
def test_commands_parse(name: str) -> None:
    """Those on lines of their own and in tables; [brackets] and ... are not for typing."""
    text = READMES[name].read_text()
    lines = re.findall(r"^    (?:.* && )?python3 -m opswap (.+)$", text, re.MULTILINE)
    lines += re.findall(r"^\| `python3 -m opswap ([^`]+)` \|", text, re.MULTILINE)
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] != "--help" and "[" not in line:
            assert _parser().parse_args(words).command == words[0]


# Of the first README, in the order that a newcomer reads them.
HEADINGS = """Install and try|What it replaces|swap|Many branches as one|The finders|Memory and tiny numbers
When nothing is found|Limits|The code"""


def test_the_first_one_has_its_parts_in_order() -> None:
    text = READMES["README.md"].read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS.replace("\n", "|").split("|")
    introduction, block, after = re.split(r"^```(?:python)?\n", text, maxsplit=2, flags=re.MULTILINE)
    assert "opswap.swap(model)" in introduction and len(block.splitlines()) <= 12
    table, picture, install = (after.index(s) for s in ("| network, batch |", "![", "## Install"))
    assert table < picture < install
    rows = re.search(r"^## What it replaces\n\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert rows is not None and len(rows[1].splitlines()) == 2 + 10
    assert all(len(cell.split()) <= 12 for row in rows[1].splitlines() for cell in row.split("|"))
    assert all(
        link in text.rpartition("## The code")[2] for link in ("CHANGELOG.md", "csrc/README.md", "LICENSE")
    )


def test_the_first_one_is_short() -> None:
    lines = READMES["README.md"].read_text().splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 240
    for extra, command in ("demo", "python3 -m opswap demo"), ("test", "python3 -m pytest"):
        assert f"    python3 -m pip install torch==2.13.0 '.[{extra}]' && {command}" in lines
