# SPDX-License-Identifier: MIT
"""Builds the C driver of tests/kernels.c, and runs it:

python tests/driver.py --time norm     builds for this machine, and runs with these arguments
python tests/driver.py --help          those of the build; the others are in kernels.c
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).parent
CSRC = TESTS.parent / "csrc"
sys.path.insert(0, str(CSRC))
import recipe  # noqa: E402

FAMILIES = (
    "dropout",
    "channels",
    "linear",
    "pointwise",
    "depthwise",
    "conv",
    "chain",
    "pool",
    "norm",
    "norm_pool",
    "layer_norm",
    "batch",
)
# Families whose kernels a family calls.
CALLED = {"chain": ("depthwise",), "norm_pool": ("norm", "pool")}
CORE = ("isa", "prefetch", "scratch", "memory", "parts")
PORTABLE = ("portable16", "portable32", "portable64")
TIERS = {"x86_64": ("avx2", "avx512"), "aarch64": ("neon",)}
EVERY_TIER = ("neon", "avx2", "avx512", *PORTABLE)
FLAGS = [
    *recipe.FLAGS,
    "-Wno-psabi",
    "-Wno-pedantic",
    "-Wno-unknown-warning-option",
    *(f"-D{k}={v}" for k, v in recipe.DEFINED),
]
FLAGS += ["-DOSW_TEST_TIERS=1", "-D_DEFAULT_SOURCE", f"-I{CSRC}", f"-I{TESTS}", f"-I{TESTS / 'c'}"]
ARM_LIBRARIES = os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")
# Quick to compile and to trace; assertions stay.
QUICK = ["-O1", "-g1", "-gdwarf-4"]


def tiers_here() -> tuple[str, ...]:
    """Those that the CPU may have; the kernels for AVX-512 are worth their compilation only where they can run."""
    tiers = TIERS.get(platform.machine(), ())
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "avx512f"
    return tuple(t for t in tiers if t != "avx512" or "avx512f" in flags) + PORTABLE


def _without(family: str, tiers: Iterable[str], folder: Path) -> list[str]:
    """Flags by which the tables of a family do without the tiers that are not compiled."""
    names = ("primitives__{}" if family == "primitives" else f"osw_{family}_fill__{{}}").format
    header = folder / f"without_{family}.h"
    header.write_text("".join(f"#pragma weak {names(t)}\n" for t in EVERY_TIER if t not in tiers))
    return ["-include", str(header)]


def _objects_of(source: Path, tiers: Iterable[str], folder: Path) -> list[tuple[Path, Path, list[str]]]:
    """Source, object and flags of every object that is wanted of one file of a family."""
    tier = source.stem.removeprefix(source.parent.name + "_")
    objects = []
    for suffix, flags in recipe.variants(source.name):
        if tier + suffix in EVERY_TIER and tier + suffix not in tiers:
            continue
        more = _without(tier, tiers, folder) if tier == source.parent.name else []
        objects.append((source, folder / f"{source.parent.name}_{source.stem}{suffix}.o", [*flags, *more]))
    return objects


def _primitives(tiers: Iterable[str], folder: Path) -> list[tuple[Path, Path, list[str]]]:
    jobs = []
    for tier in tiers:
        width = tier.removeprefix("portable")
        header = "portable" if width != tier else tier
        flags = [f'-DSIMD="core/simd_{header}.h"']
        if width != tier:
            flags += [f"-DVEC_BYTES={width}", *recipe.PORTABLE]
        jobs.append((TESTS / "c" / "primitives.c", folder / f"primitives_{tier}.o", flags))
    return jobs


def build(
    folder: Path,
    compiler: str = "gcc",
    flags: Sequence[str] = QUICK,
    tiers: Sequence[str] | None = None,
    families: Sequence[str] = ("primitives", *FAMILIES),
    sources: Path = CSRC,
) -> Path:
    """Compile the driver with these families, whose folders are in `sources`, and, beside the scalar one, tiers."""
    tiers = tiers_here() if tiers is None else tiers
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(CSRC / "core" / f"{name}.c", folder / f"core_{name}.o", []) for name in CORE]
    for name in ("driver", "driver_rooms", "driver_compare", "driver_contract", "core_contract", "threads"):
        jobs.append((TESTS / "c" / f"{name}.c", folder / f"{name}.o", []))
    called = {name for family in families for name in CALLED.get(family, ())}
    for family in sorted(called - set(families)):
        for source in sorted((CSRC / family).glob("*.c")):
            jobs += _objects_of(source, tiers, folder)
    for family in families:
        if family == "primitives":
            jobs += _primitives(tiers, folder)
            flags_of = _without(family, tiers, folder)
            jobs.append((TESTS / "c" / "primitives_family.c", folder / "family_primitives.o", flags_of))
            continue
        for source in sorted((sources / family).glob("*.c")):
            jobs += _objects_of(source, tiers, folder)
        longer = tuple(other for other in FAMILIES if other.startswith(f"{family}_"))
        for source in sorted((TESTS / "c").glob(f"{family}*.c")):
            if not (longer and source.stem.startswith(longer)):
                jobs.append((source, folder / f"family_{source.stem}.o", []))
    listed = "-DFAMILIES=" + " ".join(f"X({family})" for family in families)
    built = f'-DTIERS="scalar {" ".join(tiers)}"'
    jobs.append((TESTS / "kernels.c", folder / "kernels.o", [listed, built]))
    common = [compiler, f"-I{sources}", *FLAGS, *flags]

    def compile_one(job: tuple[Path, Path, list[str]]) -> None:
        source, target, own = job
        subprocess.run([*common, *own, "-c", str(source), "-o", str(target)], check=True)

    largest_first = sorted(jobs, key=lambda job: -job[0].stat().st_size)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, largest_first))
    program = folder / "kernels"
    objects = [str(target) for _, target, _ in jobs]
    subprocess.run([compiler, *flags, *objects, "-pthread", "-lm", "-o", str(program)], check=True)
    return program


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, help="of the objects and the program `kernels`; a temporary one if not given"
    )
    parser.add_argument("--compiler", default="gcc")
    parser.add_argument(
        "--release",
        action="store_true",
        help="compile as a wheel is, which takes minutes; always with --time",
    )
    options, rest = parser.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        flags = recipe.RELEASE if options.release or "--time" in rest else QUICK
        wanted = [family for family in FAMILIES if family in rest] or ["primitives", *FAMILIES]
        program = build(options.folder or Path(temporary), options.compiler, flags, families=wanted)
        return subprocess.run([str(program), *rest], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
