# SPDX-License-Identifier: MIT
"""Batch normalisation fused with the activation that follows it."""

from ._activations import parse, spell
from ._arguments import check_activation
from ._moving import is_watched
from ._reference import reference
from .batch_norm import batch_norm, batch_norm_act, batch_norm_relu, infer

__all__ = [
    "batch_norm",
    "batch_norm_act",
    "batch_norm_relu",
    "check_activation",
    "infer",
    "is_watched",
    "parse",
    "reference",
    "spell",
]
