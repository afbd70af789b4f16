# SPDX-License-Identifier: MIT
"""A training step of whole networks under autocast to 16 bits, beside the same step in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import opswap
from opswap.bench.case import Case, shape_text

from .models import NETWORKS, Network, step

__all__ = ["cases"]

_LAST = torch.channels_last
_OURS = {"swapped float32": "NHWC", "swapped 16 bits": "NHWC"}


def cases(batch: int) -> Iterator[Case]:
    """Half the batch: the stock forms take ten times as long on CPUs without instructions for 16 bits."""
    for name, network in NETWORKS.items():
        images = max(1, batch // 2) * network.batches
        shape = shape_text((images, 3, *network.size))
        for dtype in ("bfloat16", "float16"):
            build = partial(_steps, network, images, getattr(torch, dtype))
            yield Case(
                f"{name}, autocast", shape, dtype, "step", build, _OURS, tolerance=network.tolerance + 0.1
            )


class _Autocast(nn.Module):
    """The model under autocast; its output is in float32, as losses want it."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype):
            output = self.model(x)
        return output.float()


def _steps(network: Network, images: int, dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    model = network.make()
    x = torch.randn(images, 3, *network.size).contiguous(memory_format=_LAST)
    classes, characters = network.labels
    labels = torch.randint(classes, (images, *characters))
    with torch.autocast("cpu", dtype):
        swapped = opswap.swap(copy.deepcopy(model), memory_format=_LAST)
    stock = copy.deepcopy(model).to(memory_format=_LAST)
    forms = {
        "stock float32": (copy.deepcopy(model), x.contiguous()),
        "stock 16 bits": (_Autocast(stock, dtype), x),
        "swapped float32": (opswap.swap(copy.deepcopy(model), memory_format=_LAST), x),
        "swapped 16 bits": (_Autocast(swapped, dtype), x),
    }
    return {form: step(m, y, labels, network.loss) for form, (m, y) in forms.items()}
