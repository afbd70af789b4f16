# SPDX-License-Identifier: MIT
"""Batch normalisation fused with the activation that follows it; group, instance and layer normalisation."""

from ._activations import activate, parse, spell
from ._arguments import check_activation
from ._moving import is_watched
from ._reference import reference
from .batch_norm import batch_norm, batch_norm_act, batch_norm_relu, infer
from .batch_norm_pool import batch_norm_act_max_pool2d
from .group_norm import (
    group_norm,
    group_norm_fits,
    instance_norm,
    instance_norm_fits,
)
from .layer_norm import layer_norm, layer_norm2d, layer_norm2d_fits, layer_norm_fits
from .mean_square import over_mean_square
from .torch_norms import (
    gradient_misread,
    gradient_missing,
    torch_batch_norm,
    torch_group_norm,
    torch_instance_norm,
    vector_misread,
)

__all__ = [
    "activate",
    "batch_norm",
    "batch_norm_act",
    "batch_norm_act_max_pool2d",
    "batch_norm_relu",
    "check_activation",
    "gradient_misread",
    "gradient_missing",
    "group_norm",
    "group_norm_fits",
    "infer",
    "instance_norm",
    "instance_norm_fits",
    "is_watched",
    "layer_norm",
    "layer_norm2d",
    "layer_norm2d_fits",
    "layer_norm_fits",
    "over_mean_square",
    "parse",
    "reference",
    "spell",
    "torch_batch_norm",
    "torch_group_norm",
    "torch_instance_norm",
    "vector_misread",
]
