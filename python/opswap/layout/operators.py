# SPDX-License-Identifier: MIT
"""What the checker knows of torch's operators by name."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "CONVERTERS",
    "MATRIX_PRODUCTS",
    "NOT_IMAGES",
    "REDUCTIONS",
    "WEIGHTS",
]

# Copies that move data and compute nothing.
CONVERTERS = frozenset({"aten.clone", "aten._to_copy", "aten.copy", "aten.copy_", "aten.contiguous"})

MATRIX_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})

# Operators that may put one number in place of all pixels.
REDUCTIONS = frozenset(
    f"aten.{name}"
    for name in ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "logsumexp", "norm")
)

# Position of the weight among the arguments of a convolution.
WEIGHTS: Mapping[str, int] = {
    "aten.convolution": 1,
    "aten.convolution_overrideable": 1,
    "aten._convolution": 1,
    "aten.mkldnn_convolution": 1,
    "aten.cudnn_convolution": 1,
    "aten.convolution_backward": 2,
}

# 4-D tensors that are not images, by their places among arguments and outputs: weights, sampling grids.
NOT_IMAGES: Mapping[str, tuple[int, int | None]] = {
    **{name: (place, None) for name, place in WEIGHTS.items()},
    "aten.convolution_backward": (2, 1),
    "aten.grid_sampler_2d": (1, None),
    "aten.grid_sampler_2d_backward": (2, 1),
    "aten.grid_sampler_3d": (1, None),
    "aten.grid_sampler_3d_backward": (2, 1),
}
