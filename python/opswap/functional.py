# SPDX-License-Identifier: MIT
"""The operators as functions: names and signatures are torch's where torch has the operator."""

from .ops.channels import cat_channel_shuffle, cat_channel_shuffle_split, channel_shuffle

__all__ = ["cat_channel_shuffle", "cat_channel_shuffle_split", "channel_shuffle"]
