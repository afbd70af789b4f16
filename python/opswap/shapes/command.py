# SPDX-License-Identifier: MIT
"""`python -m opswap shapes`: a user's script, or a model, under the detector."""

from __future__ import annotations

from opswap.finding.command import Command

from .detector import detect

__all__ = ["COMMAND"]

_EXAMPLES = """
shapes -- train.py --epochs 1
shapes --steps 3 --plot shapes.png -- -m package.train --batch-size 32
shapes package.module:factory --input 32x3x224x224 --backward --strict

The report is printed at the end, also after an error or Ctrl-C, and the exit status is the script's own.
"""

COMMAND = Command(
    name="shapes",
    help="name the lines of a script or a model whose shapes depend on data, and the rewrites that keep a size",
    description="Name the lines of a training script, or of a model, whose shapes depend on data, the inputs whose "
    "shapes change between steps, and the rewrites that keep a size.",
    examples=_EXAMPLES,
    make=lambda model, allow, step: detect(model, allow=allow),
)
