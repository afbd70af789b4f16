# SPDX-License-Identifier: MIT
"""The operator and its backward as torch's own products, and by the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as torch_functional
from torch import Tensor

from opswap import _core
from opswap._torch import half_instructions, library_takes, multiplies_tiles

from .._stats import count_kernel

__all__ = [
    "FLOATS",
    "HALVES",
    "NAME",
    "NAME_BACKWARD",
    "Sections",
    "fits",
    "kernel",
    "kernel_backward",
    "library_product",
    "library_wins",
    "reference",
    "reference_backward",
]

NAME = "grouped_linear"
NAME_BACKWARD = f"{NAME}_backward"
HALVES = (torch.bfloat16, torch.float16)
FLOATS = (torch.float32, torch.float64, *HALVES)

Sections = Sequence[int] | None


def reference(input: Tensor, weight: Tensor, bias: Tensor | None = None, sections: Sections = None) -> Tensor:
    """The operator in plain torch: one batched product, or one product per group if sections differ.

    Args and returns: as `opswap::grouped_linear`, see `operator` in _operators.py.
    """
    if sections is None:
        rows, columns = input.transpose(0, 1), weight.transpose(1, 2)
        output = torch.bmm(rows, columns) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, columns)
        return output.transpose(0, 1).contiguous()
    weights = weight.split(list(sections))
    biases: Sequence[Tensor | None] = (None,) * len(weights) if bias is None else bias.split(list(sections))
    parts = zip(input.unbind(1), weights, biases, strict=True)
    return torch.cat([torch_functional.linear(x, w, b) for x, w, b in parts], 1)


def reference_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, sections: Sections, mask: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias that mask selects, in plain torch."""
    if sections is None:
        rows = grad_output.transpose(0, 1)
        grad_input = torch.bmm(rows, weight).transpose(0, 1).contiguous() if mask[0] else None
        grad_weight = torch.bmm(rows.transpose(1, 2), input.transpose(0, 1)) if mask[1] else None
    else:
        columns = grad_output.split(list(sections), 1)
        pairs = zip(columns, weight.split(list(sections)), strict=True)
        grad_input = torch.stack([dy @ w for dy, w in pairs], 1) if mask[0] else None
        pairs = zip(columns, input.unbind(1), strict=True)
        grad_weight = torch.cat([dy.t() @ x for dy, x in pairs]) if mask[1] else None
    return grad_input, grad_weight, grad_output.sum(0) if mask[2] else None


@cache
def _matrix_units(dtype: torch.dtype) -> bool:
    """True if torch's own products multiply this half precision without converting it."""
    known = half_instructions()
    return bool(library_takes(dtype)) if known is None else dtype in known


# Multiplications a group from which on a library call is worth its price, and the least of each side: for kernels
# without vectors, and for the forward in 16 bits if the library has instructions for it.
_LIBRARY_WORK, _LIBRARY_SIDE, _UNITS_SIDE = 32**3, 8, 64
# Elements of a group's weight from which on the library's gradients are faster on CPUs that multiply tiles: 100 x 256
# 1.4 to 2.0 times as fast as the kernels on an Intel Xeon, 512 x 512 2.8 times, 64 x 64 0.66 to 0.85.
_TILED_WEIGHT = 1 << 14

_multiplies_tiles = cache(multiplies_tiles)


def library_wins(input: Tensor, weight: Tensor, backward: bool = False) -> bool:
    """True if torch's batched product is faster than the kernels.

    It is faster if the kernels have no vectors and groups are not small, unless it would have to convert 16 bits. If
    the CPU multiplies 16 bits itself, as the kernels do not, it is ahead of vectors too in the forward of large groups,
    and if it multiplies tiles in the backward of those with large weights.
    """
    has_units = input.dtype in HALVES and _matrix_units(input.dtype)
    leads = _core.linear_leads()
    if not has_units and (leads or input.dtype in HALVES):
        return False
    rows, groups, in_features = input.shape
    outputs = weight.numel() // max(groups * in_features, 1)
    if leads and backward:
        tiled = weight.dim() == 3 and outputs * in_features >= _TILED_WEIGHT
        if not (tiled and _multiplies_tiles(input.dtype)):
            return False
    work = rows * outputs * in_features
    least = _UNITS_SIDE if leads else _LIBRARY_SIDE
    return work >= _LIBRARY_WORK and min(rows, outputs, in_features) >= least


def _converts(input: Tensor) -> bool:
    """True if whole tensors of half precision are converted: kernels without vectors do it at every product."""
    return input.dtype in HALVES and _core.isa_current() == "scalar"


def _by_library(input: Tensor, weight: Tensor, backward: bool = False) -> bool:
    """True if torch's own products compute a call: nothing to compute, or faster than the kernels."""
    return not input.numel() or not weight.numel() or library_wins(input, weight, backward)


def fits(sections: Sections, input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """What the extension checks by itself, and torch's own products would broadcast."""
    if input.dim() != 3 or weight.dim() != (3 if sections is None else 2):
        return False
    groups, outputs = (weight.shape[0], None) if sections is None else (len(sections), sum(sections))
    return (
        input.shape[1:] == (groups, weight.shape[-1])
        and outputs in (None, weight.shape[0])
        and (bias is None or bias.shape == weight.shape[:-1])
    )


def kernel(sections: Sections, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """On the CPU: the kernel, or the library if it is faster. The kernel refuses what does not fit."""
    if fits(sections, input, weight, bias) and _by_library(input, weight):
        run = library_product if sections is None else reference
        output = run(input, weight, bias, sections)
    elif _converts(input):
        wide = [None if t is None else t.float() for t in (input, weight, bias)]
        output = _run(sections, *wide).to(input.dtype)
    else:
        output = _run(sections, input, weight, bias)
    count_kernel(NAME)
    return output


def library_product(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, sections: Sections = None
) -> Tensor:
    """`reference` of equal groups without a graph: the product is written as it is returned."""
    output = input.new_empty((input.shape[0], *weight.shape[:2]))
    rows, columns, turned = input.transpose(0, 1), weight.transpose(1, 2), output.transpose(0, 1)
    if bias is None:
        torch.bmm(rows, columns, out=turned)
    else:
        torch.baddbmm(bias.unsqueeze(1), rows, columns, out=turned)
    return output


def _run(sections: Sections, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    output = _core.grouped_linear(input, weight, bias, sections)
    if output is NotImplemented:
        bias = None if bias is None else bias.contiguous()
        output = _core.grouped_linear(input.contiguous(), weight.contiguous(), bias, sections)
    return output


def kernel_backward(
    sections: Sections, mask: Sequence[bool], grad_output: Tensor, input: Tensor, weight: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias that mask selects; None for the others."""
    tensors = (grad_output, input, weight)
    if _by_library(input, weight, backward=True):
        gradients = reference_backward(*tensors, sections, mask)
    elif _converts(input):
        wide = _run_backward(sections, mask, *(t.float() for t in tensors))
        gradients = tuple([None if t is None else t.to(input.dtype) for t in wide])
    else:
        gradients = _run_backward(sections, mask, *tensors)
    count_kernel(NAME_BACKWARD)
    return gradients


def _run_backward(sections: Sections, mask: Sequence[bool], *tensors: Tensor) -> tuple[Tensor | None, ...]:
    gradients = _core.grouped_linear_backward(*tensors, sections, *mask)
    if gradients is NotImplemented:
        dense = [t.contiguous() for t in tensors]
        gradients = _core.grouped_linear_backward(*dense, sections, *mask)
    return gradients
