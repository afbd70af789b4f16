# SPDX-License-Identifier: MIT
"""What the tree promises: imports make no circle, in opswap.swap they point downwards; intrinsics are in one layer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import opswap

PACKAGE = Path(opswap.__file__).parent
FOLDER = PACKAGE / "swap"
# From the bottom: what a folder, or a file at the top of opswap.swap, may import besides itself.
BELOW: dict[str, set[str]] = {
    "report": set(),
    "nearness": set(),
    "rule": set(),
    "runtime": set(),
    "graph": {"runtime"},
    "capture": {"graph", "runtime"},
    "rules": {"rule", "graph", "runtime"},
    "replay": {"graph", "runtime"},
    "rewriting": {"rule", "replay", "capture", "graph", "runtime"},
    "planning": {"report", "rule", "rules", "rewriting", "replay", "capture", "graph", "runtime"},
}
ABOVE = {
    "__init__",
    "api",
    "carry_out",
    "compile",
    "explain",
    "in_double",
    "optimize",
    "ordered_draws",
    "own_draws",
    "step_time",
    "tuning",
    "verify",
}


def _room(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").parts[0]


def _imported(path: Path) -> set[str]:
    """The folders and files at the top of opswap.swap from which a file imports."""
    package = path.relative_to(FOLDER).parent.parts
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            names = [node.module.split(".")] if node.module else [[a.name] for a in node.names]
            if node.level <= len(package) + 1:
                found |= {(*base, *name)[0] for name in names}
    return found


def test_every_file_is_in_a_known_place() -> None:
    assert {_room(path) for path in FOLDER.rglob("*.py")} == BELOW.keys() | ABOVE


@pytest.mark.parametrize("room", BELOW)
def test_imports_point_downwards(room: str) -> None:
    upwards = {
        f"{path.relative_to(FOLDER)}: {name}"
        for path in FOLDER.rglob("*.py")
        if _room(path) == room
        for name in _imported(path) - {room} - BELOW[room]
    }
    assert not upwards


def _modules() -> dict[str, Path]:
    """The files of the package by the names of their modules."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(module: str, modules: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports, also inside of functions, but not for types alone."""
    tree = ast.parse(modules[module].read_text())
    package = module.split(".") if modules[module].name == "__init__.py" else module.split(".")[:-1]
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join((*base, *filter(None, [node.module])))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if inner not in ("opswap._core", "opswap._np"):  # the extensions
                    found.add(inner if inner in modules else source)
    return found & modules.keys() - {module}


def test_imports_make_no_circle() -> None:
    """An import inside of a function is for what takes long to load, and breaks no circle."""
    modules = _modules()
    below = {module: _imports(module, modules) for module in modules}
    assert len(below["opswap.cli"]) > 5 and "opswap.isa" in below["opswap.doctor"]
    while free := [module for module, used in below.items() if not used & below.keys()]:
        for module in free:
            del below[module]
    assert not below, "a circle, or above one"


# Names of vector instructions: of x86, of Arm, and of gcc for both.
_INTRINSIC = re.compile(
    r"\b(_mm\d*_\w+|__m(64|128|256|512)[di]?|v(ld|st)\d+q?_\w+|\w+intrin\.h|arm_neon\.h)\b"
)


def test_intrinsics_stand_in_the_vector_layer_alone() -> None:
    folder = Path(__file__).parents[1] / "csrc"
    sources = [path for path in folder.rglob("*.*") if path.suffix in (".c", ".h", ".inc")]
    with_intrinsics = {str(p.relative_to(folder)) for p in sources if _INTRINSIC.search(p.read_text())}
    names = ("simd_x86.inc", "simd_avx2.h", "simd_avx512.h", "simd_neon.h")
    assert with_intrinsics == {f"core/{name}" for name in names}


def test_no_clock_that_can_be_set() -> None:
    """A wait until a deadline would last as long as the clock was set back."""
    folder = Path(__file__).parents[1] / "csrc"
    for path in [*folder.rglob("*.c"), *folder.rglob("*.h")]:
        assert not re.search(
            r"\b(timespec_get|CLOCK_REALTIME|gettimeofday|time\(NULL\))", path.read_text()
        ), path


def test_a_name_of_a_module_means_one_file() -> None:
    """Tests import helpers beside them and scripts of benchmarks: of two with one name, the first imported is both."""
    root = Path(__file__).parents[1]
    names = {
        folder: {path.stem for path in (root / folder).glob("*.py")} for folder in ("tests", "benchmarks")
    }
    assert not names["tests"] & names["benchmarks"]
