# SPDX-License-Identifier: MIT
"""What the checker knows of torch's operators by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = [
    "CONVERTERS",
    "MATRIX_PRODUCTS",
    "NOT_IMAGES",
    "REDUCTIONS",
    "SKIPPED",
    "WEIGHTS",
    "op_name",
    "tensors_in",
]

# They make tensors of no data, or look at nothing of the data.
_NO_DATA = """
    alias detach detach_ empty empty_like empty_permuted empty_strided full full_like is_pinned is_same_size
    lift lift_fresh lift_fresh_copy new_empty new_empty_strided new_full new_ones new_zeros ones ones_like rand
    rand_like randint randint_like randn randn_like record_stream resize_ resize_as_ set_ zeros zeros_like
    _local_scalar_dense equal item fill_ zero_ normal_ uniform_ bernoulli_ _pin_memory
"""
SKIPPED = frozenset(f"aten.{name}" for name in _NO_DATA.split())

# Copies that move data and compute nothing.
CONVERTERS = frozenset({"aten.clone", "aten._to_copy", "aten.copy", "aten.copy_", "aten.contiguous"})

MATRIX_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})

# Operators that may put one number in place of all pixels.
REDUCTIONS = frozenset(
    f"aten.{name}"
    for name in ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "logsumexp", "norm")
)

# Where the weight stands among the arguments of a convolution.
WEIGHTS: Mapping[str, int] = {
    "aten.convolution": 1,
    "aten.convolution_overrideable": 1,
    "aten._convolution": 1,
    "aten.mkldnn_convolution": 1,
    "aten.cudnn_convolution": 1,
    "aten.convolution_backward": 2,
}

# 4-D tensors that are no images, by their places among arguments and outputs: weights, sampling grids.
NOT_IMAGES: Mapping[str, tuple[int, int | None]] = {
    **{name: (place, None) for name, place in WEIGHTS.items()},
    "aten.convolution_backward": (2, 1),
    "aten.grid_sampler_2d": (1, None),
    "aten.grid_sampler_2d_backward": (2, 1),
    "aten.grid_sampler_3d": (1, None),
    "aten.grid_sampler_3d_backward": (2, 1),
}


_SEQUENCES = frozenset({tuple, list})
_SCALARS = frozenset({type(None), int, float, bool, str})


def op_name(func: Any) -> str:
    """ "aten.clone" of torch.ops.aten.clone.default."""
    return func._schema.name.replace("::", ".")


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of an argument, an output or a tuple of either, lists opened."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if type(value) in _SEQUENCES:
        for part in value:
            kind = type(part)
            if kind is Tensor:
                found.append(part)
            elif kind in _SEQUENCES:
                found += tensors_in(part)
            elif kind not in _SCALARS and isinstance(part, Tensor):
                found.append(part)
    return found
