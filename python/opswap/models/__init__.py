# SPDX-License-Identifier: MIT
"""Plain-torch networks whose checkpoints are interchangeable with the published ones."""

from .lprnet import LPRNet, lprnet
from .multi_branch import BranchLoop, MultiBranch, multi_branch
from .shufflenetv2 import (
    ShuffleNetV2,
    shufflenet_v2_x0_5,
    shufflenet_v2_x1_0,
    shufflenet_v2_x1_5,
    shufflenet_v2_x2_0,
)

__all__ = [
    "BranchLoop",
    "LPRNet",
    "MultiBranch",
    "ShuffleNetV2",
    "lprnet",
    "multi_branch",
    "shufflenet_v2_x0_5",
    "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5",
    "shufflenet_v2_x2_0",
]
