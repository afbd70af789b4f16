# SPDX-License-Identifier: MIT
"""The C driver tests/kernels.c: every function of core/simd.h of each tier against its body in plain C."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CSRC = TESTS.parent / "csrc"
FLAGS = [
    "-std=c11",
    "-ffp-contract=off",
    "-DOSW_TEST_TIERS=1",
    "-Wno-psabi",
    f"-I{CSRC}",
    f"-I{TESTS}",
    f"-I{TESTS / 'c'}",
]
TIERS = {"x86_64": ("avx2", "avx512", "portable32", "portable64"), "aarch64": ("neon", "portable16")}


def build(compiler: str, machine: str, folder: Path) -> Path:
    """Compile the driver with every tier of the machine."""
    objects = []
    for tier in TIERS[machine]:
        width = tier.removeprefix("portable")
        flags = ["-O3", f'-DSIMD="core/simd_{tier}.h"']
        if width != tier:
            flags = ["-O1", '-DSIMD="core/simd_portable.h"', f"-DVEC_BYTES={width}"]
        objects.append(folder / f"{tier}.o")
        command = [compiler, *FLAGS, *flags, "-c", TESTS / "c" / "primitives.c", "-o", objects[-1]]
        subprocess.run(command, check=True)
    driver = folder / "kernels"
    sources = [TESTS / "kernels.c", CSRC / "core" / "isa.c"]
    subprocess.run([compiler, *FLAGS, "-O1", *sources, *objects, "-lm", "-o", driver], check=True)
    return driver


def run(*command: str | Path) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    print(result.stdout + result.stderr)
    assert result.returncode == 0
    assert "results as in plain C" in result.stdout or "not on this CPU" in result.stdout


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_primitives_of_this_machine(compiler: str, seed: int, tmp_path: Path) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    machine = platform.machine()
    if machine not in TIERS:
        pytest.skip(f"{machine} has no vector tier")
    run(build(compiler, machine, tmp_path), str(seed), "300")


def test_primitives_of_neon_emulated(seed: int, tmp_path: Path) -> None:
    compiler, emulator = "aarch64-linux-gnu-gcc", "qemu-aarch64"
    if not (shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"{compiler} or {emulator} is not installed")
    root = os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")
    run(emulator, "-L", root, build(compiler, "aarch64", tmp_path), str(seed), "50")
