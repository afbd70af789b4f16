# SPDX-License-Identifier: MIT
"""What the wheel and the sdist hold: stubs that fit their modules, types, one version, everything needed to build."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tarfile
from importlib import resources
from pathlib import Path

import pytest

import opswap

ROOT = Path(__file__).parents[1]
SOURCES = pytest.mark.skipif(
    not (ROOT / "setup.py").is_file(), reason="the sources of the package are not beside the tests"
)

pytestmark = pytest.mark.once


def stub(name: str) -> dict[str, ast.FunctionDef]:
    """The functions of a stub by name."""
    text = (resources.files("opswap") / f"{name}.pyi").read_text()
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", ["_core", "_np"])
class TestStubs:
    def test_every_function_has_one(self, name: str) -> None:
        module = importlib.import_module(f"opswap.{name}")
        public = {n for n, value in vars(module).items() if callable(value) and not n.startswith("__")}
        assert set(stub(name)) == public

    def test_parameters_are_those_of_the_docstring(self, name: str) -> None:
        module = importlib.import_module(f"opswap.{name}")
        compared = 0
        for function, node in stub(name).items():
            doc = " ".join((inspect.getdoc(getattr(module, function)) or "").split())
            match = re.match(rf"{function}\(((?:[^()]|\([^()]*\))*)\)", doc)
            if match is None or node.args.vararg is not None:
                continue
            words = [part.split()[0] for part in re.sub(r"\([^()]*\)", "size", match[1]).split(", ")]
            assert [arg.arg for arg in node.args.posonlyargs] == words, function
            compared += 1
        assert compared > 20 or name == "_np"

    def test_arguments_are_by_position_alone(self, name: str) -> None:
        for node in stub(name).values():
            assert not node.args.args and not node.args.kwonlyargs
            assert (
                all(arg.annotation is not None for arg in node.args.posonlyargs) and node.returns is not None
            )


def test_types_are_announced() -> None:
    assert (resources.files("opswap") / "py.typed").is_file()


def test_the_version_is_in_one_place() -> None:
    """In __init__.py, where setuptools reads it; the changelog's newest entry is of it."""
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project and 'version = { attr = "opswap.__version__" }' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None and newest[1] == opswap.__version__
    package = Path(opswap.__file__).parent
    written = [
        path.name
        for path in package.rglob("*.py")
        if re.search(rf"""["']{re.escape(opswap.__version__)}["']""", path.read_text())
    ]
    assert written == ["__init__.py"]


@SOURCES
def test_the_sdist_holds_what_a_build_needs(tmp_path: Path) -> None:
    """Every source, header, stub and table, the tests and the benchmarks; no product of a build."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    command += ["sdist", "--dist-dir", str(tmp_path), "--formats", "gztar"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    assert archive.name == f"opswap-{opswap.__version__}.tar.gz"
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames() if not opened.getmember(name).isdir()}
    needed = {"setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in"}
    for folder, suffixes in (
        ("csrc", (".c", ".h", ".md")),
        ("python", (".py", ".pyi", ".typed", ".json", ".md")),
        ("tests", (".py", ".c", ".h")),
        ("benchmarks", (".py", ".json", ".md")),
    ):
        found = (path for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
        needed |= {str(path.relative_to(ROOT)) for path in found if "egg-info" not in str(path)}
    assert needed <= held, sorted(needed - held)
    assert not [name for name in held if name.endswith((".so", ".o", ".pyc"))]


@SOURCES
def test_a_build_copies_stubs_tables_and_every_module(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    command += ["build_py", "--build-lib", str(tmp_path / "lib")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    built = {
        str(path.relative_to(tmp_path / "lib")) for path in (tmp_path / "lib").rglob("*") if path.is_file()
    }
    suffixes = (".py", ".pyi", ".typed", ".json", ".md")
    needed = {
        str(path.relative_to(ROOT / "python"))
        for path in (ROOT / "python" / "opswap").rglob("*")
        if path.suffix in suffixes
    }
    assert needed == built, sorted(needed ^ built)
