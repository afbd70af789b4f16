# SPDX-License-Identifier: MIT
"""How much faster than torch each rule was measured: a table shipped for classes of CPUs, and this machine's own.

By default, tensors in a memory format in which a rule was measured slower run the original code.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from opswap import isa
from opswap._machine import cache_folder, cpu_class, cpu_model
from opswap.ops._layout import CHANNELS_LAST

from ..runtime.condition_texts import describe_condition
from ..runtime.shown import shown

__all__ = [
    "cache_file",
    "forget_tables",
    "gain",
    "keep_gains",
    "kept_gains",
    "losing_formats",
    "loss",
    "not_slower",
]


_SHIPPED = Path(__file__).with_name("gains.json")
_NOISE = 0.95  # a ratio above this is not a loss

Table = Mapping[str, Mapping[str, float]]


def cache_file() -> Path:
    """Where `tune` keeps this machine's table: costs.json in the folder of the cache."""
    return cache_folder() / "costs.json"


def gain(rule: str) -> float | None:
    """How many times faster than torch a rule's training step is, the mean over memory formats.

    None if it was measured neither on this machine nor on another with the same instruction set.
    """
    ratios = list(_table().get(rule, {}).values()) if not _borrowed() else []
    return math.prod(ratios) ** (1 / len(ratios)) if ratios else None


def losing_formats(rule: str) -> tuple[str, ...]:
    """The memory formats in which a rule was measured slower than torch."""
    return tuple(k for k, ratio in _table().get(rule, {}).items() if ratio < _NOISE)


def loss(rule: str) -> str:
    """Why a rule is not applied on this machine at all, or ""."""
    ratios = _table().get(rule, {})
    if not ratios or len(losing_formats(rule)) < len(ratios):
        return ""
    source = f" (figures for {_borrowed()})" if _borrowed() else ""
    return "slower here: " + ", ".join(f"{ratio:.2f}x in {k}" for k, ratio in ratios.items()) + source


def keep_gains(file: Path, gains: Any) -> None:
    """Write gains as those of this machine. Raises: OSError if the folder cannot be written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps({**_machine(), "gains": gains}, indent=2))
    partial.replace(file)


def kept_gains(file: Path) -> Any:
    """What `keep_gains` wrote on this machine with this version of torch; None for everything else."""
    try:
        found = json.loads(file.read_text())
        return found["gains"] if {k: found[k] for k in _machine()} == _machine() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_tables() -> None:
    """Read the tables again, the next time that one is needed."""
    _read.cache_clear()


def _machine() -> dict[str, str]:
    return {"cpu": cpu_model(), "class": cpu_class(), "torch": torch.__version__}


def _table() -> Table:
    return _read(cache_file(), tuple(reversed(isa.available())))[0]


def _borrowed() -> str:
    """The class of CPUs of the table, "" if the table is this machine's own."""
    found = _read(cache_file(), tuple(reversed(isa.available())))[1]
    return found if found != cpu_class() else ""


@lru_cache(maxsize=8)
def _read(own: Path, tiers: tuple[str, ...]) -> tuple[Table, str]:
    """This machine's own table, or a shipped one, and its class of CPUs.

    Without one for this class, that of the nearest class below: whether a rule loses is a better guess than none.
    """
    gains = kept_gains(own)
    if gains is not None:
        return gains, cpu_class()
    shipped = json.loads(_SHIPPED.read_text())
    vectors = [tier for tier in tiers if tier != "scalar"]
    classes = [f"{platform.machine()}-{tier}" for tier in vectors or tiers]
    return next(((shipped[c]["gains"], c) for c in classes if c in shipped), ({}, cpu_class()))


def not_slower(input: Tensor, losing: tuple[str, ...]) -> bool:
    """True if the memory format of the tensor is not one of those in which the replacement is slower."""
    last = CHANNELS_LAST.get(input.dim())
    if last is None or input.is_contiguous() or not input.is_contiguous(memory_format=last):
        return "contiguous" not in losing
    return "channels_last" not in losing


def _why_slower(input: Tensor, losing: tuple[str, ...]) -> str:
    return (
        f"the replacement was measured slower for {' and '.join(losing)} tensors: the input is {shown(input)}"
    )


describe_condition(not_slower, _why_slower)
