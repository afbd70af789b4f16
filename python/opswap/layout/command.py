# SPDX-License-Identifier: MIT
"""`python -m opswap layout`: a user's script, or a model, under the checker."""

from __future__ import annotations

from torch import Tensor, nn

from opswap.finding.command import Command
from opswap.ops._layout import CHANNELS_LAST, to_channels_last

from .checker import check

__all__ = ["COMMAND"]

_EXAMPLES = """
layout -- train.py --epochs 1
layout --steps 3 --plot layout.png -- -m package.train --batch-size 32
layout package.module:factory --input 32x3x224x224 --backward --strict

A script runs as it is; a factory's model and inputs are converted to channels_last first. The report is printed at the
end, also after an error or Ctrl-C, and the exit status is the script's own.
"""


def _prepared(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() in CHANNELS_LAST:
            tensor.data = to_channels_last(tensor.data)
    return tuple(map(to_channels_last, inputs))


COMMAND = Command(
    name="layout",
    help="name the lines of a script or a model that lose channels_last, and what that costs",
    description="Name the lines of a training script, or of a model, that lose the channels_last memory format, "
    "what that costs, and what to change.",
    examples=_EXAMPLES,
    make=lambda model, allow, step: check(model, allow=allow),
    prepare=_prepared,
)
