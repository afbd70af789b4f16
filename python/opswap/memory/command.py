# SPDX-License-Identifier: MIT
"""`python -m opswap denormals`: a user's script, or a model, under the finder of denormal numbers."""

from opswap.finding.command import Command

from .finder import Watch

__all__ = ["COMMAND"]

_EXAMPLES = """
denormals -- train.py --epochs 1
denormals --steps 3 --plot denormals.png -- -m package.train --batch-size 32
denormals package.module:factory --input 32x3x224x224 --backward --strict

The report is printed at the end, also after an error or Ctrl-C, and the exit status is the script's own. The step
of a factory's model is timed as a whole too, with and without flushing.
"""

COMMAND = Command(
    name="denormals",
    help="name the modules of a script or a model that hold denormal numbers, and what flushing them gains",
    description="Name the modules of a training script, or of a model, whose weights, activations or gradients hold "
    "denormal numbers, and measure what flushing them gains.",
    examples=_EXAMPLES,
    make=lambda model, allow, step: Watch(model, allow, step),
)
