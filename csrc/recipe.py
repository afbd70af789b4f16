# SPDX-License-Identifier: MIT
"""How the C code is compiled: what setup.py and the tests' C driver share."""

from __future__ import annotations

FLAGS = ["-std=c11", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra", "-Wpedantic"]
DEFINED = [("_POSIX_C_SOURCE", "200809L")]
# Kernels run on threads of any size: see core/scratch.h. Without optimisation frames are larger.
RELEASE = ["-O3", "-g0", "-DNDEBUG", "-Wframe-larger-than=49152"]
DEBUG = ["-O1", "-g1", "-UNDEBUG"]
# The hidden tiers are many, and need not be fast; at -O1 gcc does not see that a loop over lanes sets them all.
PORTABLE = ["-O1", "-Wno-psabi", "-Wno-maybe-uninitialized"]
WIDTHS = (16, 32, 64)


def sanitizing(sanitizers: str) -> list[str]:
    """Flags for compiling with these, as "address,undefined"."""
    # Undefined behaviour ends the process: calls that describe it take gcc minutes per file of vector kernels.
    trap = ["-fno-sanitize-recover=undefined", "-fsanitize-undefined-trap-on-error"]
    return [f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer", *trap]


def variants(source: str) -> list[tuple[str, list[str]]]:
    """The objects that a source makes: what is added to the name of each, and its flags.

    Files *_portable.c hold the kernels of hidden tiers, and are compiled once per width of a vector.
    """
    if not source.endswith("_portable.c"):
        return [("", [])]
    return [(str(width), [f"-DVEC_BYTES={width}", *PORTABLE]) for width in WIDTHS]
