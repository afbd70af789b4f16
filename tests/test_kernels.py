# SPDX-License-Identifier: MIT
"""C drivers: the functions of core/simd.h of each tier against plain C, and the errors of core/simd_math.h."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import opswap

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


def tier_flags(tier: str) -> list[str]:
    width = tier.removeprefix("portable")
    if width == tier:
        return ["-O3", f'-DSIMD="core/simd_{tier}.h"']
    return ["-O1", '-DSIMD="core/simd_portable.h"', f"-DVEC_BYTES={width}"]


def build(compiler: str, machine: str, folder: Path) -> Path:
    """Compile the driver with every tier of the machine."""
    objects = []
    for tier in TIERS[machine]:
        objects.append(folder / f"{tier}.o")
        command = [compiler, *FLAGS, *tier_flags(tier), "-c", TESTS / "c" / "primitives.c", "-o", objects[-1]]
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


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("tier", ["neon", "avx2", "avx512", "portable16", "portable64"])
def test_errors_of_functions(compiler: str, tier: str, seed: int, tmp_path: Path) -> None:
    """Over floats of all sizes, denormals, infinities and NaN among them."""
    if not shutil.which(compiler) or tier not in (*opswap.isa.available(), *opswap.isa.hidden()):
        pytest.skip(f"{compiler} or {tier} is not here")
    sources = [TESTS / "c" / "accuracy.c", CSRC / "core" / "prefetch.c"]
    command = [compiler, *FLAGS, *tier_flags(tier), *sources, "-lm", "-o", tmp_path / "accuracy"]
    subprocess.run(command, check=True)
    step = 40009 if tier.startswith("portable") else 4001
    for first in (0, 0x7F800000 % step, 0xFF800000 % step, seed % step):  # 0 and the infinities among them
        result = subprocess.run(
            [tmp_path / "accuracy", str(step), str(first)], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout
