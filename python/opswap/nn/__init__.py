# SPDX-License-Identifier: MIT
"""The operators as modules. None adds a key to the state_dict of what it replaces."""

from .channels import CatChannelShuffle, ChannelShuffle, IndexSelectFull, IndexSelectHalf
from .linear import GroupedLinear, GroupFC
from .norm import BatchNormAct1d, BatchNormAct2d, BatchNormAct3d
from .pool import AvgPool3dAsPool2d, GlobalMaxPool2d, Pool3dAsPool2d

__all__ = [
    "AvgPool3dAsPool2d",
    "BatchNormAct1d",
    "BatchNormAct2d",
    "BatchNormAct3d",
    "CatChannelShuffle",
    "ChannelShuffle",
    "GlobalMaxPool2d",
    "GroupFC",
    "GroupedLinear",
    "IndexSelectFull",
    "IndexSelectHalf",
    "Pool3dAsPool2d",
]
