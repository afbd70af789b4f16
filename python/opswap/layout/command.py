# SPDX-License-Identifier: MIT
"""`python -m opswap layout`: a user's script, or a model, under the checker."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from opswap.finding.command import Command

from .checker import check

__all__ = ["COMMAND"]

_EXAMPLES = """
layout -- train.py --epochs 1
layout --steps 3 --plot layout.png -- -m package.train --batch-size 32
layout package.module:factory --input 32x3x224x224 --backward --strict

A script runs as it is; a factory's model and inputs are converted to channels_last first. The report is printed at the
end, also after an error or Ctrl-C, and the exit status is the script's own.
"""
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _to_channels_last(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() in _LAST:
            tensor.data = _in_channels_last(tensor.data)
    return tuple(map(_in_channels_last, inputs))


def _in_channels_last(tensor: Tensor) -> Tensor:
    if tensor.dim() not in _LAST:
        return tensor
    return tensor.contiguous(memory_format=_LAST[tensor.dim()])


COMMAND = Command(
    name="layout",
    help="name the lines of a script or a model that lose channels_last, and what that costs",
    description="Name the lines of a training script, or of a model, that lose the channels_last memory format, "
    "what that costs, and what to change.",
    examples=_EXAMPLES,
    make=lambda model, allow, step: check(model, allow=allow),
    prepare=_to_channels_last,
)
