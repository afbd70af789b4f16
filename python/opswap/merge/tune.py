# SPDX-License-Identifier: MIT
"""Measure the ways to run merged convolutions on this machine, for modules that are merged without an example."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import nn

from opswap._draws import generators_kept
from opswap._progress import Update
from opswap._timing import medians_in_turn

from . import costs
from .layers.conv import BranchConv
from .measure import MODES, convolution_calls, measuring

__all__ = ["tune"]

# Kernel, channels in and out, branches, images and the side of each: as branches have them behind a backbone.
_KERNELS = (1, 3)
_CHANNELS = ((16, 16), (64, 64), (256, 256), (32, 128), (128, 32))
_BRANCHES = (4, 12)
_INPUTS = ((1, 7), (1, 28), (16, 7), (16, 14))
# Multiplications beyond which a convolution takes too long to be measured; the nearest smaller one is measured instead.
_MOST_WORK = 1 << 29
_FORMATS = (torch.contiguous_format, torch.channels_last)


def tune(*, seconds: float = 0.05, progress: Update | None = None) -> costs.Gains:
    """Time every way at many sizes, with one thread and with all, and keep the gains for this machine.

    Sets torch's number of threads, which new threads of the process inherit meanwhile, and puts it back. Other
    threads may train swapped models meanwhile, but falsify the times. The random generators of the process are put back
    as they were: numbers that they draw from them meanwhile are drawn again.

    Args:
        seconds: for each convolution, and five rounds at least.
        progress: is called with the setting of each convolution before it is measured, the number of convolutions
            done, and of all.
    Returns: {setting: [[*sizes, *gains over the grouped convolution]]}, as `costs.SIZES` and `costs.WAYS`.
    Raises: OSError if the cache folder cannot be written.
    """
    table: costs.Gains = {}
    threads = torch.get_num_threads()
    convolutions = list(itertools.product(sorted({1, threads}), MODES, _FORMATS, _sizes()))
    try:
        for done, (count, mode, memory_format, sizes) in enumerate(convolutions):
            torch.set_num_threads(count)
            name = costs.setting_name(mode == "training", memory_format is torch.channels_last, count)
            if progress is not None:
                progress(name, done, len(convolutions))
            with generators_kept():
                table.setdefault(name, []).append(_row(sizes, mode, memory_format, seconds))
    finally:
        torch.set_num_threads(threads)
    costs.keep(table)
    return table


def _sizes() -> Iterator[tuple[int, int, int, int, int, int]]:
    """Kernel, channels in, channels out, branches, images, side."""
    for kernel, (into, out), branches, (batch, side) in itertools.product(
        _KERNELS, _CHANNELS, _BRANCHES, _INPUTS
    ):
        if kernel**2 * into * out * branches * batch * side**2 <= _MOST_WORK:
            yield kernel, into, out, branches, batch, side


def _row(
    sizes: tuple[int, ...], mode: str, memory_format: torch.memory_format, seconds: float
) -> list[float]:
    kernel, into, out, branches, batch, side = sizes
    convolutions = [nn.Conv2d(into, out, kernel, padding=kernel // 2) for _ in range(branches)]
    layer = BranchConv(convolutions).to(memory_format=memory_format)
    x = torch.randn(batch, branches * into, side, side, dtype=torch.float32, device="cpu").contiguous(
        memory_format=memory_format
    )
    with measuring(mode):
        ms = medians_in_turn(convolution_calls(layer, x, mode), seconds)
    gains = [ms["grouped"] / ms[way] if way in ms else 0.0 for way in ("loop", "product")]
    return [kernel**2, into, out, branches, batch, side**2, *(round(gain, 2) for gain in gains)]
