# SPDX-License-Identifier: MIT
"""The inputs on which opswap's pools are faster than torch's, whose calls cost less.

Limits are numbers of elements of the input, from which a step (forward and backward, one thread) was measured to take
torch as long or longer on Zen 4 with AVX-512 and with imitated AVX2, if no other CPU is named.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..runtime.condition_texts import describe_condition
from ..runtime.shown import shown
from .conditions import poolable, trains
from .kept import elements

__all__ = [
    "AVERAGE",
    "adaptive_pays",
    "far_windows",
    "fills_vectors",
    "large_enough",
    "max_pool_pays",
    "pair",
]

Window = tuple[tuple[int, int], ...]

# Average pools, contiguous and in channels_last. In channels_last torch takes 0.80 to 0.98 of the time for 2 x 2 of
# 250,880 elements of float32, 1.1 to 1.2 times as long for 401,408. bfloat16, which torch computes slowly, takes 1.05
# to 1.5 times as long from half of that in a step, and 0.9 to 1.1 times in inference. float16 gains as late as float32.
AVERAGE = (1 << 14, 1 << 18)
# The same for windows that overlap, in elements that they read. Contiguous, 1.1 to 1.8 times as fast from here on, 0.9
# to 1.0 for 5 x 5 of 20,000. In channels_last 0.95 to 2.4 times (Zen 5 too, 3 x 3 and 5 x 5), 0.7 to 1.2 with fewer.
_OVERLAPPING = (1 << 15, 3 << 16)
# In inference windows of as many taps in channels_last gain from 3/8 of that on: of float32 1.0 to 1.6 times as fast,
# on an Intel CPU with AVX-512 and with imitated AVX2, 0.7 to 1.2 with fewer; of 9 taps 0.9 to 1.2 times, of 4 as late
# as in a step.
_MANY_TAPS = 16

# Adaptive max pools over one, two and three dimensions that train, contiguous and in channels_last. For planes in
# channels_last torch takes 0.95 to 1.6 times as long from here on, and 0.6 to 0.95 times for 100,352 elements.
_ADAPTIVE = {1: (1 << 17, 1 << 17), 2: (1 << 15, 1 << 19), 3: (1 << 15, 1 << 17)}
# Planes in channels_last that become one pixel: 0.98 to 1.6 times, and 0.9 to 1.0 times for 262,144 elements.
_ONE_PIXEL = 3 << 17
# Planes of float16 in channels_last, whose gradient torch scatters faster: 0.6 to 0.95 times below for 7 x 7 pixels.
_HALF = 1 << 20
# All of them in inference: 1.1 to 6 times.
_INFERRED = 1 << 15
_TILE = 1024  # elements of the input rows that one output row reads: the kernels over planes go through such tiles

_FEWEST_CHANNELS = 8
_MANY_PIXELS = 1 << 11

# Max pools over contiguous planes. Vectors reduce windows that begin in every column or every second one; scalar code
# the others, and outputs of one column. There torch takes 0.13 to 0.9 of the time for windows that share little, 0.3 to
# 0.9 for fewer columns, and else 1.0 to 4 times as long. 3 x 3 with a stride of 3 takes it 0.4 to 1.1 times as long.
# Over volumes 0.18 to 0.93 of the time, and else 1.0 to 20 times as long (Xeon with AVX-512); in channels_last_3d it
# takes 1.4 to 1.8 times as long for windows of 144 to 784 taps, and 0.63 of the time for 8 x 28 x 28.
_VECTOR_STRIDE = 2
_FEWEST_COLUMNS = 4
_FEW_TAPS = 3
# Taps of windows in channels_last that share nothing from which torch takes 0.68 to 0.91 of the time.
_FAR_TAPS = 1 << 7


def _fewest(input: Tensor, planes: int, pixels: int, window: Window | None) -> int:
    """The limit for an average pool, or a maximum without a window, of this input."""
    if input.is_contiguous():
        return planes
    if window is None:
        return pixels
    if trains(input):
        return pixels // 2 if input.dtype is torch.bfloat16 else pixels
    return pixels // 8 * 3 if input.dtype is torch.float32 and math.prod(window[0]) >= _MANY_TAPS else pixels


def large_enough(
    input: Any,
    planes: int,
    pixels: int,
    ndims: tuple[int, ...] | None = None,
    window: Window | None = None,
    doubles: bool = False,
) -> bool:
    """`poolable`, and of as many elements as a call costs: of `planes` if contiguous, in channels_last of `pixels`.

    Args:
        window: kernel_size, stride and padding of an average pool. If its windows overlap, elements count as often as
            they are read.
        doubles: also of float64. torch takes 0.16 to 0.6 of the time for a step of an average pool of float64, and 0.1
            of it for amax in inference.
    """
    if not poolable(input, ndims) or (input.dtype is torch.float64 and not doubles):
        return False
    elements = input.numel()
    if elements >= _fewest(input, planes, pixels, window):
        return True
    if window is None or input.dim() != 4:
        return False
    reads = input.shape[0] * input.shape[1]
    for size, kernel, stride, padding in zip(input.shape[2:], *window, strict=True):
        reads *= kernel * ((size + 2 * padding - kernel) // max(stride, 1) + 1)
    return reads > elements and reads >= _fewest(input, *_OVERLAPPING, window)


def _fewest_adaptive(input: Tensor, spatial: int, one: bool) -> int:
    """The limit for an adaptive max pool of this input."""
    if not trains(input):
        return _INFERRED
    planes, pixels = _ADAPTIVE[spatial]
    if input.is_contiguous():
        return planes
    if spatial == 2 and input.dtype is torch.float16:
        return _HALF
    return _ONE_PIXEL if spatial == 2 and one else pixels


def _is_one(output_size: Any) -> bool:
    return all(size == 1 for size in _sizes(output_size, 1))


def _sizes(output_size: Any, spatial: int) -> Sequence[Any]:
    return output_size if isinstance(output_size, (list, tuple)) else (output_size,) * spatial


def _has_kernel(input: Tensor, spatial: int, output_size: Any) -> bool:
    """False if scalar code pools this input: of float64, and contiguous in windows that fit no tile.

    torch takes 0.3 to 0.95 of the time for float64, 0.35 to 0.7 in inference and 0.7 to 1.1 in a step for such windows:
    of rows of more than `_TILE` elements together, and of volumes unless they become one pixel.
    """
    if input.dtype is torch.float64:
        return False
    if not input.is_contiguous() or _is_one(output_size):
        return True
    if spatial == 3 or input.dim() <= spatial:
        return False
    rows = 1
    if spatial == 2:
        height, wanted = input.shape[-2], _sizes(output_size, spatial)[0]
        if wanted is not None:
            wanted = max(wanted, 1)
            rows = height // wanted + (2 if height % wanted else 0)
    return rows * input.shape[-1] <= _TILE


def adaptive_pays(input: Any, spatial: int, output_size: Any) -> bool:
    """`poolable`, and an adaptive max pool over the last `spatial` dimensions for which opswap is faster."""
    if not poolable(input) or not _has_kernel(input, spatial, output_size):
        return False
    return input.numel() >= _fewest_adaptive(input, spatial, _is_one(output_size))


def fills_vectors(input: Tensor, in_training: bool = True, batched: int = 4, one: bool = False) -> bool:
    """False for images in channels_last on which torch is faster: of float64, and in training of few channels.

    Measured on Zen 5: a step takes torch 0.15 to 0.6 of the time for float64, 0.15 to 0.6 for 3 to 7 channels.

    Args:
        batched: dimensions of a batch. Without one torch refuses channels_last, as MaxPool3d does for 4-D tensors.
        one: the output is one pixel. Then torch takes 0.71 to 0.83 of the time for 64 channels of 56 x 56 and 112 x 112
            pixels of float32; with 48 or 96 channels, 28 x 28 pixels or bfloat16 more than opswap. Zen 5: on Zen 4 it
            takes 1.1 to 1.2 times as long.
    """
    if input.is_contiguous() or input.dim() < batched:
        return True
    if (
        one
        and input.dtype is torch.float32
        and 48 < input.shape[1] < 96
        and input[0, 0].numel() >= _MANY_PIXELS
    ):
        return False
    return input.dtype is not torch.float64 and (not in_training or input.shape[1] >= _FEWEST_CHANNELS)


def max_pool_pays(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, spatial: int = 2
) -> bool:
    """False for windows over planes for which torch is faster: large ones that share little, as over whole planes.

    Args: as of torch's max_pool2d, or of max_pool3d if `spatial` is 3, for an input for which `poolable` holds. What
        torch refuses is True.
    """
    kernel = _directions(kernel_size, spatial)
    if not kernel or input.dim() not in (spatial + 1, spatial + 2):
        return True
    taps, contiguous = math.prod(kernel), input.is_contiguous()
    if not contiguous and (taps < _FAR_TAPS or spatial == 3):
        return True
    steps, padded = _directions(stride, spatial) or kernel, _directions(padding, spatial)
    if not padded or min(steps) < 1:
        return True
    sizes = input.shape[-spatial:]
    windows = [
        (size + 2 * p - k) // step + 1 for size, k, step, p in zip(sizes, kernel, steps, padded, strict=True)
    ]
    columns = windows[-1]
    if contiguous and steps[-1] <= _VECTOR_STRIDE and columns != 1:
        return True
    reads, elements = math.prod(windows) * taps, math.prod(sizes)
    if not contiguous:
        return reads > elements
    return columns >= _FEWEST_COLUMNS and (taps <= _FEW_TAPS or 2 * reads >= 3 * elements)


def pair(value: Any) -> tuple[int, ...]:
    """An option of two directions; () for None, and for what is not one."""
    return _directions(value, 2)


def _directions(value: Any, count: int) -> tuple[int, ...]:
    """An option of so many directions, or of one number for all; () for None, and for what is not one."""
    if isinstance(value, int):
        return (value,) * count
    if not isinstance(value, (tuple, list)) or len(value) not in (1, count):
        return ()
    if not all(isinstance(v, int) for v in value):
        return ()
    return tuple(value) * (count // len(value))


def _too_small(
    input: Any,
    planes: int,
    pixels: int,
    ndims: tuple[int, ...] | None = None,
    window: Window | None = None,
    doubles: bool = False,
) -> str:
    if not isinstance(input, Tensor) or (ndims is not None and input.dim() not in ndims):
        return ""
    if input.dtype is torch.float64 and not doubles:
        return f"torch is faster on float64: the input is {shown(input)}"
    return elements(input, _fewest(input, planes, pixels, window))


def _no_gain(input: Any, spatial: int, output_size: Any) -> str:
    if not poolable(input):
        return f"no kernel for {shown(input)}"
    if not _has_kernel(input, spatial, output_size):
        windows = "on float64, and on large contiguous windows"
        return f"torch is faster {windows}: the input is {shown(input)}, the output {output_size}"
    return elements(input, _fewest_adaptive(input, spatial, _is_one(output_size)))


def _few_channels(input: Tensor, in_training: bool = True, batched: int = 4, one: bool = False) -> str:
    many = ", and on large images of 49 to 95 channels that become one pixel," if one else ""
    return f"torch is faster on float64 and fewer than 8 channels{many} in channels_last: the input is {shown(input)}"


def far_windows(input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, spatial: int = 2) -> str:
    """Why `max_pool_pays` is False."""
    window = f"{kernel_size} with a stride of {stride or kernel_size}"
    return f"torch is faster on large windows that share little: {window}, the input is {shown(input)}"


describe_condition(large_enough, _too_small)
describe_condition(max_pool_pays, far_windows)
describe_condition(adaptive_pays, _no_gain)
describe_condition(fills_vectors, _few_channels)
