# SPDX-License-Identifier: MIT
"""The operators as functions: names and signatures are torch's if torch has the operator."""

from .ops.chain import conv2d_batch_norm_act, conv_chain
from .ops.channels import cat_channel_shuffle, cat_channel_shuffle_split, channel_shuffle
from .ops.depthwise import depthwise_conv2d
from .ops.dropout import dropout
from .ops.linear import grouped_linear
from .ops.norm import (
    batch_norm,
    batch_norm_act,
    batch_norm_act_max_pool2d,
    batch_norm_relu,
    group_norm,
    instance_norm,
    layer_norm,
    layer_norm2d,
    over_mean_square,
)
from .ops.permutation import channel_permutation
from .ops.pointwise import pointwise_conv2d
from .ops.pool import (
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool2d,
    avg_pool3d,
    global_max_pool2d,
    max_pool2d,
    max_pool3d,
)
from .ops.reduced_precision import conv2d, linear

__all__ = [
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "batch_norm_act",
    "batch_norm_act_max_pool2d",
    "batch_norm_relu",
    "cat_channel_shuffle",
    "cat_channel_shuffle_split",
    "channel_permutation",
    "channel_shuffle",
    "conv2d",
    "conv2d_batch_norm_act",
    "conv_chain",
    "depthwise_conv2d",
    "dropout",
    "global_max_pool2d",
    "group_norm",
    "grouped_linear",
    "instance_norm",
    "layer_norm",
    "layer_norm2d",
    "linear",
    "max_pool2d",
    "max_pool3d",
    "over_mean_square",
    "pointwise_conv2d",
]
