# SPDX-License-Identifier: MIT
"""Kernels, and all that is called on the way to them, leave room on a stack of 64 KiB: read from the machine code.

-Wframe-larger-than in setup.py looks at one function at a time. Here the frames along calls are summed, those through
tables of kernels and other pointers too. The tiers that wheels lack (portable16, portable32, portable64) are compiled
with little optimization and spill far more: they are left out.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import opswap._core
import opswap._np
from machine_code import Function, Program, read

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the machine code of x86-64"),
    pytest.mark.skipif(not (shutil.which("objdump") and shutil.which("readelf")), reason="no binutils"),
]

_TIERS = ["scalar", "avx2", "avx512"]
_FILE = re.compile(r"(\w+)_(scalar|neon|avx2|avx512|portable)\.c$")
_HIDDEN = re.compile(r"__portable\d+$")
_KERNELS = 56 << 10  # what they call in the C library needs little beside
_CHAINS = 64 << 10
# From a function of the module to a kernel, three are called by pointer: a step of the entry in csrc/binding, the run
# of the family, and the body that it gives to osw_parallel_for. Between the two last are frames of torch.
_STEPS = 3


class Depths:
    """The bytes of stack below a function; where pointers lead is what the tables that it mentions say."""

    def __init__(self, program: Program, operations: dict[str, list[str]]) -> None:
        """`operations`: of each family, in the order of its tables of kernels; any may be called if it is not there."""
        self.functions = program.functions
        self.program, self.operations = program, operations
        mentioned = {a for f in self.functions.values() for a in f.addresses if a in self.functions}
        self.taken = mentioned.union(*(t.functions for t in program.tables))
        hidden = [a for a, f in self.functions.items() if _HIDDEN.search(f.name)]
        self.end = min(hidden, default=1 << 63)  # hidden tiers come last
        assert not any(
            _FILE.search(f.file) and not f.file.endswith("_portable.c") and a > self.end
            for a, f in self.functions.items()
        )

    def tier(self, f: Function) -> tuple[str, int] | None:
        """The family, and the number of the tier; None outside of kernels."""
        found = _FILE.search(f.file)
        return (found.group(1), _TIERS.index(found.group(2))) if found and found.group(2) in _TIERS else None

    def kernels(self, family: str, below: int = len(_TIERS), operation: str = r"\w+") -> set[int]:
        named = re.compile(rf"osw_({family}_)?{operation}__\w+$")
        return {
            a
            for a, f in self.functions.items()
            if (tier := self.tier(f)) and tier[0] == family and tier[1] < below and named.match(f.name)
        } & self.taken

    def by_pointer(self, address: int) -> set[int]:
        """What a function of a tier may call by pointer."""
        f = self.functions[address]
        family, tier = self.tier(f) or ("", 0)
        found: set[int] = set()
        for at in f.reads | f.addresses:
            table = self.program.table_at(at)
            if table is None:
                continue
            found |= table.functions
            if table.name == "below":
                found |= self.kernels(family, tier, self.entry(family, at - table.begin, at in f.addresses))
            elif shared := re.fullmatch(r"osw_(\w+)_table", table.name):
                found |= self.kernels(shared.group(1))
        if not found:  # what another function of the file has passed
            same = {a for a in self.taken if self.functions[a].file == f.file}
            found = same - self.kernels(family) - {address}
        return found

    def entry(self, family: str, offset: int, indexed: bool) -> str:
        """The operation that an entry of a table of kernels is for."""
        if indexed or family not in self.operations:
            return r"\w+"
        return self.operations[family][offset // 8]

    def deepest(self, pointers: Callable[[int], int | None]) -> Callable[[int], int]:
        """The most bytes below the caller of a function; `pointers`: what is added for a call by pointer, if any."""
        known: dict[int, int] = {}
        above: list[int] = []

        def depth(address: int) -> int:
            if address not in known:
                assert address not in above, [self.functions[a].name for a in [*above, address]]
                above.append(address)
                f, more = self.functions[address], pointers(address)
                found = [f.frame, *(f.frame + depth(a) for a in f.calls), *map(depth, f.jumps)]
                if more is not None:
                    found += [f.frame + more] * f.calls_pointer + [more] * f.jumps_pointer
                known[address] = max(found)
                above.pop()
            return known[address]

        return depth

    def of_kernels(self) -> dict[str, int]:
        def pointers(address: int) -> int | None:
            f = self.functions[address]
            if not self.tier(f) or not (f.calls_pointer or f.jumps_pointer):
                return None
            return max(map(depth, self.by_pointer(address)), default=0)

        depth = self.deepest(pointers)
        return {f.name: depth(a) for a, f in self.functions.items() if a < self.end and self.tier(f)}

    def of_callers(self) -> tuple[dict[str, int], dict[str, int]]:
        """Of functions of the module, and of others that are called by pointer: as far as a call by pointer."""
        depth = self.deepest(lambda _: 0)
        entries = set().union(
            *(t.functions for t in self.program.tables if re.search("methods|slots", t.name))
        )
        others = {
            a
            for a in self.taken - entries
            if a < self.end and not re.search(r"__\w+$", self.functions[a].name)
        }
        others = {a for a in others if not self.tier(self.functions[a])}
        return tuple({self.functions[a].name: depth(a) for a in some} for some in (entries, others))


def largest(depths: dict[str, int]) -> tuple[int, list[str]]:
    names = sorted(depths, key=depths.__getitem__, reverse=True)[:5]
    return depths[names[0]], [f"{name} {depths[name]}" for name in names]


@pytest.mark.parametrize("module", [opswap._core, opswap._np], ids=lambda m: m.__name__)
def test_no_chain_of_calls_is_deep(module: object) -> None:
    program = read(module.__file__)
    if program.asserts:
        pytest.skip("sanitizers make frames larger")
    variants = [name for name in dir(opswap._core) if name.endswith("_variants")]
    depths = Depths(
        program, {n.removesuffix("_variants"): list(getattr(opswap._core, n)()) for n in variants}
    )
    if not any(depths.tier(f) for f in program.functions.values()):
        pytest.skip("the extension has no symbols")
    kernels, of_kernels = largest(depths.of_kernels())
    entries, others = depths.of_callers()
    entry, of_entries = largest(entries)
    other, of_others = largest(others)
    assert kernels > 16 << 10 or module is opswap._np, "frames were not read"
    assert kernels <= _KERNELS, of_kernels
    assert entry + _STEPS * other + kernels <= _CHAINS, (of_entries, of_others, of_kernels)


# Two tiers of a family: the upper one runs `body`, with `before` in front of it.
_SOURCES = {
    "keep.c": "void keep(volatile char *room) { room[0] = 1; }",
    "one_scalar.c": """
        static void osw_one_sum__scalar(int n) { TAKE(3000) }
        static void osw_one_max__scalar(int n) { TAKE(5000) }
        void osw_one_fill__scalar(kernel **table) { table[0] = osw_one_sum__scalar; table[1] = osw_one_max__scalar; }
    """,
    "one_avx2.c": """
        static kernel *below[2];
        BEFORE
        static void osw_one_sum__avx2(int n) { BODY }
        void osw_one_fill__avx2(kernel **table) {
            below[0] = table[0];
            below[1] = table[1];
            table[0] = osw_one_sum__avx2;
        }
    """,
}
_HEAD = """
#define APART static __attribute__((noinline))
#define TAKE(bytes) volatile char room[bytes]; keep(room);
typedef void kernel(int);
void keep(volatile char *room);
"""
_PARTS = "APART void small(int n) { TAKE(100) } APART void large(int n) { TAKE(7000) }\n"
_TABLE = _PARTS + "static kernel *const parts[2] = {small, large};"
_GONE = "volatile char gone[1000]; gone[n] = 1;"  # before the function ends with a jump
_CHAINS_OF_CODE = {
    "a call": (_PARTS, "TAKE(1000) large(n); keep(room);", 8000),
    "a jump": (_PARTS + f"APART void f(int n) {{ {_GONE} large(n); }}", "f(n); keep(0);", 7000),
    "a table": (_TABLE, "TAKE(1000) parts[n](n); keep(room);", 8000),
    "a table passed on": (
        _TABLE + "APART void f(kernel *const *t, int n) { TAKE(500) t[n](n); keep(room); }",
        "TAKE(1000) f(parts, n); keep(room);",
        8500,
    ),
    "a function passed on": (
        _PARTS + "APART void f(kernel *k, int n) { TAKE(500) k(n); keep(room); }",
        "TAKE(1000) f(n ? large : small, n); keep(room);",
        8500,
    ),
    "the tier below": ("", "TAKE(1000) below[0](n); keep(room);", 4000),
    "any of the tier below": ("", "TAKE(1000) below[n](n); keep(room);", 6000),
    "a jump to the tier below": ("", f"{_GONE} below[0](n);", 3000),
    "the tier below from a part": (
        "APART void f(int n) { TAKE(1000) below[1](n); keep(room); }",
        "f(n);",
        6000,
    ),
    "a large frame": ("", "TAKE(40000)", 40000),
}


def build(folder: Path, flags: str, before: str, body: str) -> Depths:
    for file, text in _SOURCES.items():
        (folder / file).write_text(_HEAD + text.replace("BEFORE", before).replace("BODY", body))
    options = ["-w", "-fPIC", "-shared", "-fvisibility=hidden", "-o", "one.so"]
    subprocess.run(["gcc", *flags.split(), *options, *_SOURCES], cwd=folder, check=True)
    return Depths(read(str(folder / "one.so")), {"one": ["sum", "max"]})


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize(
    "flags", ["-O1 -foptimize-sibling-calls", "-O3 -fno-inline-functions", "-O2 -fstack-clash-protection"]
)
@pytest.mark.parametrize("name", _CHAINS_OF_CODE)
def test_chains_are_summed(name: str, flags: str, tmp_path: Path) -> None:
    before, body, least = _CHAINS_OF_CODE[name]
    found = build(tmp_path, flags, before, body).of_kernels()["osw_one_sum__avx2"]
    page = 4096 if "clash" in flags else 0  # that of a loop's first round is counted twice
    assert least <= found < least + 400 + page * (least > page)


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
@pytest.mark.parametrize(
    "body, error",
    [("if (n) osw_one_sum__avx2(n - 1); keep(0);", "osw_one_sum__avx2"), ("TAKE(n)", "variable size")],
    ids=["recursion", "a frame of variable size"],
)
def test_what_has_no_sum(body: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=error):
        build(tmp_path, "-O1", "", body).of_kernels()
