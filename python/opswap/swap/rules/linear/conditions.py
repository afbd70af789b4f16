# SPDX-License-Identifier: MIT
"""When maps of groups run as one call: shapes that fit, sizes for which it is faster, memory that is not shared."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from opswap.ops._function import plain_cpu

from ..conditions import plain_floats, poolable

__all__ = [
    "can_fill_in_one_write",
    "has_narrow_weight",
    "one_map_per_group",
    "one_weight_per_group",
    "worth_joining",
]


def one_weight_per_group(input: Any, weight: Any, bias: Any = None) -> bool:
    """True for input (N, G, d), weight (1, G, d) and bias (1, G), of which (weight * input).sum(-1) is (N, G)."""
    if not plain_floats(input, weight) or input.dim() != 3 or weight.dim() != 3 or weight.shape[0] != 1:
        return False
    if input.shape[1:] != weight.shape[1:]:
        return False
    return bias is None or (plain_floats(input, bias) and bias.shape == weight.shape[:2])


# Outputs of a group up to which a grouped linear map is faster than einsum though it has to copy the weight first,
# and the rows from which it is.
_NARROW, _MANY = 10, 8


def has_narrow_weight(input: Any, weight: Any) -> bool:
    """True for input (N, G, in) and weight (G, out, in), which lies in that order or has few outputs."""
    if not one_map_per_group(input, weight):
        return False
    return weight.is_contiguous() or (weight.shape[1] <= _NARROW and input.shape[0] >= _MANY)


def one_map_per_group(input: Any, weight: Any, bias: Any = None) -> bool:
    """True for input (N, G, in), weight (G, out, in) and bias (G, out)."""
    if not plain_floats(input, weight) or input.dim() != 3 or weight.dim() != 3:
        return False
    if input.shape[1] != weight.shape[0] or input.shape[2] != weight.shape[2]:
        return False
    return bias is None or (plain_floats(input, bias) and bias.shape == weight.shape[:2])


def can_fill_in_one_write(
    target: Any, fresh: bool, input: Tensor, groups: int, parameters: tuple[Tensor, ...]
) -> bool:
    """True if one write of (N, groups, out), made of input (N, groups, in), is what a write of each group is.

    Args:
        fresh: only the forward holds the target. Else it must be shown to share no memory with what is read
            and with itself, and it is not written in one call under torch.compile.
        parameters: what the maps read besides.
    """
    if not poolable(target, (3,)) or target.device != input.device:
        return False
    if input.shape[1] != groups or target.shape[:2] != input.shape[:2]:
        return False
    if fresh:
        return not (target.requires_grad and target.is_leaf)  # to which torch refuses to write
    others = (input, *parameters)
    if not plain_cpu((target, *others)) or not _distinct(target):
        return False
    start, end = _memory(target)
    spans = [_memory(t) for t in others]
    return all(end <= first or last <= start for first, last in spans)


def _memory(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _distinct(tensor: Tensor) -> bool:
    """True if the strides show that no two elements share memory."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += stride * (size - 1)
    return True


# Elements of a Linear up to which one call is faster than one for each though all weights are copied first.
_SMALL = 32768


def worth_joining(input: Any, weights: tuple[Any, ...], biases: tuple[Any, ...], flat: bool) -> bool:
    """True if Linears of these parameters, one per group, are faster as one call.

    Args: input: (N, G, in), or (N, G * in) if flat.
    """
    if not plain_floats(input, *weights, *biases) or input.dim() != (2 if flat else 3):
        return False
    features = weights[0].shape[1]
    if tuple(input.shape[1:]) != ((len(weights) * features,) if flat else (len(weights), features)):
        return False
    return all(w.dim() == 2 and w.shape[1] == features and w.numel() <= _SMALL for w in weights)
