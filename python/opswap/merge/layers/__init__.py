# SPDX-License-Identifier: MIT
"""Which of torch's layers become which merged layer, and how those without tensors are run."""

from __future__ import annotations

from torch import nn

from .attention import BranchAttention
from .conv import BranchConv, BranchConvTranspose
from .layer import RECORDED, Layer
from .linear import BranchLinear
from .norm import (
    BranchBatchNorm1d,
    BranchBatchNorm2d,
    BranchBatchNorm3d,
    BranchGroupNorm,
    BranchInstanceNorm1d,
    BranchInstanceNorm2d,
    BranchInstanceNorm3d,
    BranchLayerNorm,
)
from .other import BranchAdaptiveMaxPool2d, BranchPReLU, Unmerged

__all__ = ["CHANNELWISE", "ELEMENTWISE", "LAYERS", "POOLS", "RANDOM", "RECORDED", "Layer", "Unmerged"]


def _of_dimensions(name: str) -> list[type[nn.Module]]:
    return [getattr(nn, f"{name}{n}d") for n in (1, 2, 3)]


LAYERS: dict[type[nn.Module], type[Layer]] = {
    **dict.fromkeys(_of_dimensions("Conv"), BranchConv),
    **dict.fromkeys(_of_dimensions("ConvTranspose"), BranchConvTranspose),
    nn.BatchNorm1d: BranchBatchNorm1d,
    nn.BatchNorm2d: BranchBatchNorm2d,
    nn.BatchNorm3d: BranchBatchNorm3d,
    nn.InstanceNorm1d: BranchInstanceNorm1d,
    nn.InstanceNorm2d: BranchInstanceNorm2d,
    nn.InstanceNorm3d: BranchInstanceNorm3d,
    nn.GroupNorm: BranchGroupNorm,
    nn.LayerNorm: BranchLayerNorm,
    nn.Linear: BranchLinear,
    nn.MultiheadAttention: BranchAttention,
    nn.PReLU: BranchPReLU,
}

# One element of the result depends on the same element of the input alone.
ELEMENTWISE: frozenset[type[nn.Module]] = frozenset(
    {
        nn.AlphaDropout,
        nn.CELU,
        nn.Dropout,
        nn.ELU,
        nn.GELU,
        nn.Hardshrink,
        nn.Hardsigmoid,
        nn.Hardswish,
        nn.Hardtanh,
        nn.Identity,
        nn.LeakyReLU,
        nn.LogSigmoid,
        nn.Mish,
        nn.ReLU,
        nn.ReLU6,
        nn.RReLU,
        nn.SELU,
        nn.SiLU,
        nn.Sigmoid,
        nn.Softplus,
        nn.Softshrink,
        nn.Softsign,
        nn.Tanh,
        nn.Tanhshrink,
        nn.Threshold,
    }
)

# One channel of the result depends on the same channel of the input alone, in (B, C, *).
CHANNELWISE: frozenset[type[nn.Module]] = frozenset(
    {
        BranchAdaptiveMaxPool2d,
        nn.FeatureAlphaDropout,
        nn.Upsample,
        *(t for name in ("MaxPool", "AvgPool", "LPPool", "Dropout") for t in _of_dimensions(name)),
        *(t for name in ("AdaptiveMaxPool", "AdaptiveAvgPool") for t in _of_dimensions(name)),
        *(t for name in ("ConstantPad", "ZeroPad", "ReflectionPad") for t in _of_dimensions(name)),
        *(t for name in ("ReplicationPad", "CircularPad") for t in _of_dimensions(name)),
    }
)

# What replaces pools in a merged module, made from one of the branches' own.
POOLS = {nn.AdaptiveMaxPool2d: BranchAdaptiveMaxPool2d}

RANDOM: frozenset[type[nn.Module]] = frozenset(
    {nn.AlphaDropout, nn.Dropout, nn.FeatureAlphaDropout, nn.RReLU, *_of_dimensions("Dropout")}
)
