# SPDX-License-Identifier: MIT
"""C drivers: the functions of core/simd.h of each tier against plain C, and the errors of core/simd_math.h."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import driver
import opswap

TESTS, CSRC = driver.TESTS, driver.CSRC
# The tiers with functions of their own, and those in plain C that have the same width.
PRIMITIVES = {"x86_64": ("avx2", "avx512", "portable32", "portable64"), "aarch64": ("neon", "portable16")}


def tier_flags(tier: str) -> list[str]:
    width = tier.removeprefix("portable")
    if width == tier:
        return ["-O3", f'-DSIMD="core/simd_{tier}.h"']
    return ["-O1", '-DSIMD="core/simd_portable.h"', f"-DVEC_BYTES={width}"]


def run(compiler: str, machine: str, folder: Path, arguments: Sequence[str], *emulator: str) -> str:
    """Build the driver with the functions of every tier of the machine alone, optimised as in a wheel, and run it."""
    tiers = PRIMITIVES[machine]
    program = driver.build(folder, compiler, ["-O3"], tiers, ("primitives",))
    result = subprocess.run([*emulator, program, *arguments], capture_output=True, text=True, check=False)
    print(result.stdout + result.stderr)
    assert result.returncode == 0
    return result.stdout


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_primitives_of_this_machine(compiler: str, seed: int, tmp_path: Path) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    machine = platform.machine()
    if machine not in PRIMITIVES:
        pytest.skip(f"{machine} has no vector tier")
    output = run(compiler, machine, tmp_path, ["--seed", str(seed), "--rounds", "6"])
    for tier in set(opswap.isa.available()) - {"scalar"}:
        assert f"primitives {tier}: " in output


def test_primitives_of_neon_emulated(seed: int, tmp_path: Path) -> None:
    compiler, emulator = "aarch64-linux-gnu-gcc", "qemu-aarch64"
    if not (shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"{compiler} or {emulator} is not installed")
    output = run(compiler, "aarch64", tmp_path, ["--seed", str(seed)], emulator, "-L", driver.ARM_LIBRARIES)
    assert "primitives neon: " in output


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("tier", ["neon", "avx2", "avx512", "portable16", "portable64"])
def test_errors_of_functions(compiler: str, tier: str, seed: int, tmp_path: Path) -> None:
    """Over floats of all sizes, denormals, infinities and NaN among them."""
    if not shutil.which(compiler) or tier not in (*opswap.isa.available(), *opswap.isa.hidden()):
        pytest.skip(f"{compiler} or {tier} is not here")
    sources = [TESTS / "c" / "accuracy.c", CSRC / "core" / "prefetch.c"]
    command = [compiler, *driver.FLAGS, *tier_flags(tier), *sources, "-lm", "-o", tmp_path / "accuracy"]
    subprocess.run(command, check=True)
    step = 40009 if tier.startswith("portable") else 4001
    for first in (0, 0x7F800000 % step, 0xFF800000 % step, seed % step):  # 0 and the infinities among them
        result = subprocess.run(
            [tmp_path / "accuracy", str(step), str(first)], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_limits_of_core(compiler: str, tmp_path: Path) -> None:
    """The greatest numbers, and one family more than the table has room for; undefined behaviour is an error."""
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    sources = [TESTS / "c" / "core.c", CSRC / "core" / "isa.c"]
    command = [
        compiler,
        *driver.FLAGS,
        *driver.recipe.sanitizing("undefined"),
        *sources,
        "-o",
        tmp_path / "core",
    ]
    subprocess.run(command, check=True)
    result = subprocess.run([tmp_path / "core"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")
