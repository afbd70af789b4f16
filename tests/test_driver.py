# SPDX-License-Identifier: MIT
"""The C driver of tests/kernels.c: every kernel of every tier against the scalar one, in five forms.

It runs as it is; watched by valgrind; on threads that ThreadSanitizer watches; on an emulated CPU without AVX; and,
with the kernels for NEON, on an emulated Arm CPU. A kernel with an error planted in it fails.

`pytest -m driver` runs what takes longest to compile: the hidden tiers, and ThreadSanitizer's form of the pools.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import driver

HERE = platform.machine()
pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(HERE not in driver.TIERS, reason=f"{HERE} has no vector tier"),
]


def need(*tools: str) -> None:
    for tool in tools:
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")


def run(*command: str | Path, status: int = 0) -> str:
    """What it prints, with this exit status."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    print(result.stdout + result.stderr)
    assert result.returncode == status
    return result.stdout


def assert_ran(output: str, tiers: tuple[str, ...], families: tuple[str, ...] = driver.FAMILIES) -> None:
    """Each family on these tiers, and on no other."""
    lines = {line.partition(":")[0] for line in output.splitlines() if "cases as expected" in line}
    want = {f"{family} {tier}" for family in families for tier in tiers}
    assert {line for line in lines if not line.startswith("primitives")} == want


@pytest.fixture(scope="module")
def tiers() -> tuple[str, ...]:
    """Those of this machine, hidden ones aside."""
    return tuple(tier for tier in driver.tiers_here() if tier not in driver.PORTABLE)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory, tiers: tuple[str, ...]) -> Path:
    """The driver for this machine, by gcc or by the compiler that OPSWAP_TEST_CC names."""
    compiler = os.environ.get("OPSWAP_TEST_CC", "gcc")
    need(compiler)
    return driver.build(tmp_path_factory.mktemp("driver"), compiler, tiers=tiers)


def test_every_tier_of_this_machine(kernels: Path, tiers: tuple[str, ...], seed: int) -> None:
    output = run(kernels, "--seed", str(seed))
    assert_ran(output, ("scalar", *tiers))


def test_asserts_end_calls_that_break_a_contract(kernels: Path) -> None:
    """Each number that a contract header limits, one beyond its limit, and the same call within."""
    output = run(kernels, "--contracts")
    assert {line.partition(":")[0] for line in output.splitlines()} == {"core", *driver.FAMILIES}


@pytest.mark.driver
@pytest.mark.parametrize("tier", driver.PORTABLE)
def test_hidden_tiers(tier: str, tmp_path: Path, seed: int) -> None:
    # Vectors of 64 bytes take gcc three times as long.
    compiler = "clang" if shutil.which("clang") else "gcc"
    need(compiler)
    built = driver.build(tmp_path, compiler, tiers=(tier,), families=driver.FAMILIES)
    output = run(built, "--tier", tier, "--seed", str(seed))
    assert_ran(output, (tier,))


def test_under_valgrind(kernels: Path, tiers: tuple[str, ...], seed: int) -> None:
    """The scalar tier and the best that valgrind has; reads of what was not written and of what lies behind tensors."""
    need("valgrind")
    best = tiers[0]
    arguments = ("--heap", "--quick", "--tier", "scalar", "--tier", best, "--seed", str(seed))
    output = run("valgrind", "-q", "--error-exitcode=9", kernels, *arguments)
    assert_ran(output, ("scalar", best))


@pytest.mark.parametrize(
    "families",
    [
        pytest.param(tuple(f for f in driver.FAMILIES if f != "pool"), id="quick to compile"),
        pytest.param(driver.FAMILIES, id="all", marks=pytest.mark.driver),
    ],
)
def test_on_threads_under_thread_sanitizer(
    families: tuple[str, ...], tmp_path: Path, tiers: tuple[str, ...], seed: int
) -> None:
    need("gcc")
    library = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    )
    if not Path(library.stdout.strip()).is_absolute():
        pytest.skip("gcc has no libtsan")
    best = tiers[0]
    flags = [*driver.QUICK, "-fsanitize=thread"]
    watched = driver.build(tmp_path, flags=flags, tiers=(best,), families=families)
    # Without random addresses: those of some kernels are where the sanitizer keeps its own data.
    fixed = ("setarch", HERE, "-R") if run_quietly("setarch", HERE, "-R", "true") else ()
    output = run(*fixed, watched, "--threads", "3", "--quick", "--seed", str(seed))
    assert_ran(output, ("scalar", best), families)


def run_quietly(*command: str) -> bool:
    if not shutil.which(command[0]):
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(HERE != "x86_64", reason="of the kernels for x86")
def test_on_a_cpu_without_avx(kernels: Path, seed: int) -> None:
    """Only the scalar tier is there, and its code and that around it have no instruction that the CPU has not."""
    need("qemu-x86_64")
    output = run("qemu-x86_64", "-cpu", "Nehalem", kernels, "--quick", "--seed", str(seed))
    assert "best tier scalar" in output
    assert_ran(output, ("scalar",))


@pytest.mark.skipif(HERE == "aarch64", reason="the form above runs there")
def test_neon_on_an_emulated_cpu(tmp_path: Path, seed: int) -> None:
    compiler, emulator = "aarch64-linux-gnu-gcc", "qemu-aarch64"
    need(compiler, emulator)
    kernels = driver.build(tmp_path, compiler, tiers=("neon",), families=driver.FAMILIES)
    output = run(emulator, "-L", driver.ARM_LIBRARIES, kernels, "--seed", str(seed))
    assert "best tier neon" in output
    assert_ran(output, ("scalar", "neon"))


# An error: the file of the family dropout, the text that is replaced, and by what.
IN_SCALAR = ("dropout_scalar.c", "(number < threshold)", "(number < threshold / 2)")
IN_VECTORS = ("apply.h", "lanes_of_bits_i32(bits >> at)", "lanes_of_bits_i32(bits >> at & ~1u)")
BEYOND_THE_END = ("apply.h", "i + STEP <= end", "i + STEP <= end + 1")


def plant(folder: Path, error: tuple[str, str, str]) -> Path:
    """A copy of the family with the error."""
    file, text, by = error
    shutil.copytree(driver.CSRC / "dropout", folder / "dropout")
    source = folder / "dropout" / file
    assert source.read_text().count(text) == 1
    source.write_text(source.read_text().replace(text, by))
    return folder


def build_with(
    error: tuple[str, str, str], folder: Path, tiers: tuple[str, ...], compiler: str = "gcc"
) -> Path:
    need(compiler)
    sources = plant(folder, error)
    return driver.build(folder / "built", compiler, tiers=tiers, families=("dropout",), sources=sources)


def assert_named(output: str, variant: str, tier: str) -> None:
    """All that is wrong, by family, variant, tier and size."""
    errors = [line for line in output.splitlines() if "cases as expected" not in line][1:]
    assert errors and all(line.startswith(f"dropout {variant}") for line in errors)
    assert all(f", tier {tier}, count " in line for line in errors)


def test_an_error_in_a_tier_fails(tmp_path: Path, tiers: tuple[str, ...], seed: int) -> None:
    every = (*tiers, *driver.PORTABLE)
    built = build_with(IN_VECTORS, tmp_path, every)
    for tier in every:
        output = run(built, "--tier", "scalar", "--tier", tier, "--seed", str(seed), status=1)
        assert "dropout scalar: " in output  # whose kernels are as they were
        assert_named(output, "apply", tier)


def test_an_error_in_neon_fails(tmp_path: Path, seed: int) -> None:
    if HERE == "aarch64":
        pytest.skip("the test above has it")
    need("qemu-aarch64")
    built = build_with(IN_VECTORS, tmp_path, ("neon",), "aarch64-linux-gnu-gcc")
    output = run("qemu-aarch64", "-L", driver.ARM_LIBRARIES, built, "--seed", str(seed), status=1)
    assert_named(output, "apply", "neon")


def test_an_error_in_the_scalar_tier_fails(tmp_path: Path, tiers: tuple[str, ...], seed: int) -> None:
    """Where the other tiers differ from it."""
    built = build_with(IN_SCALAR, tmp_path, tiers[:1])
    output = run(built, "--seed", str(seed), status=1)
    assert_named(output, "draw", tiers[0])


@pytest.mark.parametrize("where", ["guards", "heap"])
def test_a_write_beyond_the_end_fails(where: str, tmp_path: Path, tiers: tuple[str, ...], seed: int) -> None:
    """Guards have it, or the page behind the tensor; or, of tensors on the heap, valgrind."""
    built = build_with(BEYOND_THE_END, tmp_path, tiers[:1])
    arguments = ("--tier", tiers[0], "--seed", str(seed))
    if where == "guards":
        result = subprocess.run([built, *arguments], capture_output=True, text=True, check=False)
        assert result.returncode in (1, 3)
        assert_named(result.stdout, "apply", tiers[0])
    else:
        need("valgrind")
        run("valgrind", "-q", "--error-exitcode=9", built, "--heap", *arguments, status=9)
