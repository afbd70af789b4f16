# SPDX-License-Identifier: MIT
"""Training step and inference of ShuffleNetV2 on 224x224 images, stock and swapped, in both layouts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

import opswap
from case import LAYOUTS, Case

__all__ = ["cases"]

_MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "ShuffleNetV2 x0.5": opswap.models.shufflenet_v2_x0_5,
    "ShuffleNetV2 x1.0": opswap.models.shufflenet_v2_x1_0,
}
_SIZE = 224
_OURS = {"swapped NCHW": "NCHW", "swapped NHWC": "NHWC"}
# Relative difference of loss or logits: convolutions round differently in the two layouts.
_TOLERANCE = 1e-3


def cases(batch: int) -> Iterator[Case]:
    """A step is zero_grad, forward, cross entropy, backward and plain SGD."""
    shape = f"{batch},3,{_SIZE},{_SIZE}"
    for name, make in _MODELS.items():
        for direction, build in (("step", _steps), ("inference", _inferences)):
            run = partial(build, make, batch)
            yield Case(name, shape, "float32", direction, run, _OURS, tolerance=_TOLERANCE)


def _copies(make: Callable[[], nn.Module], batch: int) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Equal weights and images in stock and swapped models of both layouts."""
    model = make()
    images = torch.randn(batch, 3, _SIZE, _SIZE)
    for kind in ("stock", "swapped"):
        for layout, memory_format in LAYOUTS.items():
            variant = copy.deepcopy(model)
            if kind == "swapped":
                variant = opswap.swap(variant, exact=True, strict=True)
            variant = variant.to(memory_format=memory_format)
            yield f"{kind} {layout}", variant, images.contiguous(memory_format=memory_format)


def _steps(make: Callable[[], nn.Module], batch: int) -> dict[str, Callable[[], Tensor]]:
    labels = torch.randint(1000, (batch,))
    return {name: _step(model, images, labels) for name, model, images in _copies(make, batch)}


def _step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return run


def _inferences(make: Callable[[], nn.Module], batch: int) -> dict[str, Callable[[], Tensor]]:
    return {
        name: torch.inference_mode()(partial(model.eval(), images))
        for name, model, images in _copies(make, batch)
    }
