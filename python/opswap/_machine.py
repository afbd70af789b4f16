# SPDX-License-Identifier: MIT
"""This machine: its processor, the class of CPUs that share recorded figures, and the folder for figures of its own."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import platformdirs

from . import isa

__all__ = ["cache_folder", "cpu_class", "cpu_model"]


def cpu_model() -> str:
    """The processor's name as the operating system gives it, or its architecture if it gives none."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def cpu_class() -> str:
    """The class of CPUs that share a table: architecture and instruction set, such as "x86_64-avx2"."""
    return f"{platform.machine()}-{isa.available()[-1]}"


def cache_folder() -> Path:
    """opswap's folder of the user's cache.

    $XDG_CACHE_HOME/opswap if that variable is set, else the operating system's own place.
    """
    folder = os.environ.get("XDG_CACHE_HOME")
    return Path(folder, "opswap") if folder else platformdirs.user_cache_path("opswap", False)
