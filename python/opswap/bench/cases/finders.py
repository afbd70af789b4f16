# SPDX-License-Identifier: MIT
"""What the finders cost: steps that they watch against the same steps alone.

A call is a few forwards and backwards; a watched one enters the finder's context first, as a user would around a few
steps. "bare mode" is a dispatch mode that calls every operator and does nothing else: no finder can cost less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import opswap
from opswap._dispatch_mode import DispatchMode
from opswap.bench.case import Case, shape_text

__all__ = ["cases"]

_STEPS = 3
_LAST = torch.channels_last
_NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int]]] = {
    "ShuffleNetV2 x0.5": (opswap.models.shufflenet_v2_x0_5, (224, 224)),
    "LPRNet": (opswap.models.lprnet, (24, 94)),
}
# Of a loss: while a finder watches, torch's convolutions run in place of opswap's.
_TOLERANCE = 1e-3

Context = Callable[[nn.Module], AbstractContextManager[Any]]


class _Bare(DispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as the finders: no wrapper around each call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


_CONTEXTS: dict[str, Context] = {
    "plain": lambda model: nullcontext(),
    "bare mode": lambda model: _Bare(),
    "layout": opswap.layout.check,
    "shapes": opswap.shapes.detect,
    "denormals": opswap.memory.denormals,
}


def cases(batch: int) -> Iterator[Case]:
    """Both networks, stock and swapped, at a quarter of `batch` images, and at one."""
    for name, (make, size) in _NETWORKS.items():
        for form in ("stock", "swapped"):
            # The stock LPRNet does not run in channels_last.
            layout = "NCHW" if (name, form) == ("LPRNet", "stock") else "NHWC"
            ours = dict.fromkeys((name for name in _CONTEXTS if name != "plain"), layout)
            for images in dict.fromkeys((max(1, batch // 4), 1)):
                build = partial(_build, make, form, layout, (images, 3, *size))
                yield Case(
                    f"{name} {form}",
                    shape_text((images, 3, *size)),
                    "float32",
                    "step",
                    build,
                    ours,
                    tolerance=_TOLERANCE,
                    kernels=False,
                    costs=True,
                )


def _build(
    make: Callable[[], nn.Module], form: str, layout: str, shape: tuple[int, ...]
) -> dict[str, Callable[[], Tensor]]:
    memory_format = _LAST if layout == "NHWC" else torch.contiguous_format
    model, x = make(), torch.randn(shape).contiguous(memory_format=memory_format)
    model = (
        opswap.swap(model, memory_format=_LAST)
        if form == "swapped"
        else model.to(memory_format=memory_format)
    )
    return {name: partial(_steps, model, x, context) for name, context in _CONTEXTS.items()}


def _steps(model: nn.Module, x: Tensor, context: Context) -> Tensor:
    torch.default_generator.manual_seed(0)
    with context(model):
        for _ in range(_STEPS):
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
    return loss.detach()
