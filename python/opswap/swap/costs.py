# SPDX-License-Identifier: MIT
"""How much faster than torch each rule was measured: a table shipped for classes of CPUs, and this machine's own.

By default, tensors in a memory format in which a rule was measured slower take their original code.
"""

from __future__ import annotations

import copy
import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import platformdirs
import torch
from torch import Tensor, nn

from opswap import isa
from opswap._timing import ratio_spread, time_in_turn
from opswap._torch import tree_leaves
from opswap.doctor import cpu_model
from opswap.ops._stats import stats

from .rules import DEFAULT, OPTIONAL, Rule

__all__ = ["cache_file", "cpu_class", "gain", "keep_gains", "kept_gains", "losing_formats", "loss", "tune"]

_SHIPPED = Path(__file__).with_name("costs.json")
_NOISE = 0.95  # a ratio above this is no loss
_FORMATS = {
    "contiguous": {},
    "channels_last": {4: torch.channels_last, 5: torch.channels_last_3d},
}

Table = Mapping[str, Mapping[str, float]]
Progress = Callable[[str, int, int], None]


def cpu_class() -> str:
    """The class of CPUs that share a table: architecture and instruction set, such as "x86_64-avx2"."""
    return f"{platform.machine()}-{isa.available()[-1]}"


def cache_file() -> Path:
    """Where `tune` keeps this machine's table: costs.json in opswap's folder of the user's cache.

    $XDG_CACHE_HOME/opswap if that variable is set, else the operating system's own place.
    """
    folder = os.environ.get("XDG_CACHE_HOME")
    return (
        Path(folder, "opswap") if folder else platformdirs.user_cache_path("opswap", False)
    ) / "costs.json"


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


def tune(
    rules: Sequence[Rule] | None = None, *, rounds: int = 9, progress: Progress | None = None
) -> dict[str, dict[str, float]]:
    """Measure every rule that has an example against torch, and keep the result for this machine.

    Args:
        rules: None is all of them.
        rounds: timed steps of each form, in random order; the median of their ratios counts.
        progress: is called with the name of each rule before it is measured, the number of rules done, and of all.
    Returns: {rule: {memory format: time of torch / time of opswap}}, of forward and backward.
    Raises: OSError if the cache folder cannot be written.
    """
    rules = DEFAULT + OPTIONAL if rules is None else rules
    names = len({rule.name for rule in rules if rule.example is not None})
    table: dict[str, dict[str, float]] = {}
    for rule in rules:
        if rule.example is not None and rule.name not in table:
            if progress is not None:
                progress(rule.name, len(table), names)
            module, shapes = rule.example()
            ratios = {k: _ratio(rule, module, shapes, k, rounds) for k in _FORMATS}
            table[rule.name] = {k: ratio for k, ratio in ratios.items() if ratio is not None}
    keep_gains(cache_file(), table)
    _read.cache_clear()
    return table


def keep_gains(file: Path, gains: Any) -> None:
    """Write gains as those of this machine. Raises: OSError where the folder cannot be written."""
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


def _machine() -> dict[str, str]:
    return {"cpu": cpu_model(), "class": cpu_class(), "torch": torch.__version__}


def _table() -> Table:
    return _read(cache_file(), tuple(reversed(isa.available())))[0]


def _borrowed() -> str:
    """The class of CPUs that the table is of, "" if it is of this one."""
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


def _ratio(
    rule: Rule, module: nn.Module, shapes: Sequence[tuple[int, ...]], layout: str, rounds: int
) -> float | None:
    """Time of torch over ours, None where torch, or every kernel of ours, leaves this memory format out."""
    from .api import swap

    stock = module.train()
    ours = swap(copy.deepcopy(stock), rules=[rule])
    inputs = [_input(shape, layout) for shape in shapes]
    try:
        theirs = _step(stock, inputs)
    except RuntimeError:
        return None
    before = stats()["kernel"]
    forms = {"stock": theirs, "swapped": _step(ours, inputs)}
    if stats()["kernel"] == before:
        return None
    with torch.random.fork_rng([]):
        times = time_in_turn(forms, 0.0, rounds)
    return round(ratio_spread(times["stock"], times["swapped"]).median, 3)


def _input(shape: tuple[int, ...], layout: str) -> Tensor:
    memory_format = _FORMATS[layout].get(len(shape), torch.contiguous_format)
    return (
        torch.randn(shape, dtype=torch.float32, device="cpu")
        .contiguous(memory_format=memory_format)
        .requires_grad_()
    )


def _step(module: nn.Module, inputs: Sequence[Tensor]) -> Callable[[], Any]:
    """Forward and backward, after a first run."""
    leaves = [*inputs, *module.parameters()]

    def outputs() -> list[Tensor]:
        return [y for y in tree_leaves(module(*inputs)) if y.requires_grad]

    def step() -> Any:
        return torch.autograd.grad(outputs(), leaves, grads, allow_unused=True)

    grads = [torch.ones_like(y) for y in outputs()]
    step()
    return step
