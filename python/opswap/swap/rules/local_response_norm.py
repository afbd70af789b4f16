# SPDX-License-Identifier: MIT
"""F.local_response_norm of images, and torch's module, whose forward calls it: AlexNet's normalisation.

torch's function averages squares over neighbouring channels by avg_pool3d. The same lines with opswap's pool give the
same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as torch_functional
from torch import Tensor, nn
from torch.fx import Graph

from opswap import functional as F

from ..rule import Refusal, Region, Replacement, Rule, Shapes, Sized, bound_arguments, calls_of, named
from .pool import made_contiguous
from .pool_sizes import large_enough

__all__ = ["RULES"]

# Elements of an input from which a step was measured faster: 0.5 to 1.0 of torch's time (Zen 5). A step in float64
# takes 1.0 to 1.3 of it, and torch's avg_pool3d has no kernel for 16 bits on CPUs.
_FEWEST = 1 << 15


def local_response_norm(input: Tensor, size: int, alpha: float, beta: float, k: float) -> Tensor:
    """As torch.nn.functional.local_response_norm for images. Args: input: (N, C, H, W), of a floating dtype."""
    n, c, h, _ = input.size()
    squares = input.mul(input).view(n, 1, c, h, -1)
    squares = torch_functional.pad(squares, (0, 0, 0, 0, size // 2, (size - 1) // 2))
    means = made_contiguous(F.avg_pool3d(squares, (size, 1, 1), stride=1))
    divisor = means.squeeze(1).view(input.size())
    return input / divisor.mul(alpha).add(k).pow(beta)


def _find(graph: Graph) -> Iterator[Region]:
    return calls_of((torch_functional.local_response_norm,), graph)


def _prove(region: Region, shapes: Shapes) -> Replacement:
    arguments = bound_arguments(region.main, torch_functional.local_response_norm)
    numbers = [arguments[name] for name in ("size", "alpha", "beta", "k")]
    if arguments["input"] not in region.inputs or type(numbers[0]) is not int or numbers[0] < 1:
        raise Refusal("its size is not a number")
    if not all(type(v) in (int, float) for v in numbers):
        raise Refusal("its arguments are not numbers")
    given = ", ".join(map(repr, numbers))
    return Replacement(
        f"large_enough(x0, {_FEWEST}, {_FEWEST}, (4,)) and x0.dtype is float32",
        f"local_response_norm(x0, {given})",
        named(large_enough, local_response_norm) | {"float32": torch.float32},
    )


def _example() -> Sized:
    return nn.LocalResponseNorm(5), ((8, 96, 27, 27),)


RULES = (Rule("local_response_norm", True, _find, _prove, (nn.LocalResponseNorm,), example=_example),)
