# SPDX-License-Identifier: MIT
"""What the allocator of this process costs: the page faults of a training step, as it is and with freed memory kept."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from opswap._draws import generators_kept
from opswap.models import shufflenet_v2_x0_5

from .switches import reuse_freed, reuse_kept, reuses_freed

__all__ = ["AllocatorCost", "Faults", "allocator_cost"]

_SIZE, _WARM = (32, 3, 224, 224), 3  # outputs above 32 MB, which glibc always gives back
_FEW = 200  # of a step: 0.1 ms, if a fault takes half a microsecond


@dataclass(frozen=True)
class Faults:
    """Of one step: how many pages of memory the system gave, and the milliseconds of the whole step."""

    count: float
    milliseconds: float


@dataclass(frozen=True)
class AllocatorCost:
    """now: as the process is. kept: with `reuse_freed(True)`; None if the C library has no such switch, or it is on."""

    now: Faults
    kept: Faults | None

    def __str__(self) -> str:
        size = " x ".join(map(str, _SIZE))
        text = (
            f"{self.now.count:.0f} per step of ShuffleNetV2 x0.5, {size} ({self.now.milliseconds:.0f} ms); "
        )
        return text + self.advice

    @property
    def advice(self) -> str:
        """What would help."""
        if self.now.count < _FEW:
            return "freed memory is used again"
        if self.kept is None:
            return "this C library cannot keep freed memory: preload tcmalloc"
        if self.kept.count > self.now.count / 2:
            return (
                "opswap.memory.reuse_freed(True) does not reach this allocator: preload tcmalloc in its place"
            )
        after = f"{self.kept.count:.0f} ({self.kept.milliseconds:.0f} ms)"
        return f"{after} after opswap.memory.reuse_freed(True), which opswap.optimize calls"


def allocator_cost() -> AllocatorCost:
    """Run training steps of a stock ShuffleNetV2 x0.5. Afterwards freed memory is kept, or not, as before."""
    with generators_kept(), torch.enable_grad():
        model, images = shufflenet_v2_x0_5(), torch.randn(_SIZE)

        def step() -> None:
            model(images).sum().backward()

        now = _faults_of(step)
        if now.count < _FEW or reuses_freed():
            return AllocatorCost(now, None)
        with reuse_kept():
            try:
                reuse_freed(True)
            except RuntimeError:
                return AllocatorCost(now, None)
            return AllocatorCost(now, _faults_of(step))


def _faults_of(step: Callable[[], None]) -> Faults:
    for _ in range(_WARM):
        step()
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, perf_counter()
    step()
    seconds, after = perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return Faults(float(after - before), 1e3 * seconds)
