# SPDX-License-Identifier: MIT
"""The operators as modules. None has parameters or buffers, so none adds a key to the state_dict."""

from .channels import CatChannelShuffle, ChannelShuffle, IndexSelectFull, IndexSelectHalf
from .pool import AvgPool3dAsPool2d, GlobalMaxPool2d, Pool3dAsPool2d

__all__ = [
    "AvgPool3dAsPool2d",
    "CatChannelShuffle",
    "ChannelShuffle",
    "GlobalMaxPool2d",
    "IndexSelectFull",
    "IndexSelectHalf",
    "Pool3dAsPool2d",
]
