# SPDX-License-Identifier: MIT
"""Pools at the shapes of LPRNet and ShuffleNetV2, against torch's own and what users write around its refusals.

"torch" is the operator itself. torch's MaxPool3d refuses a channels_last batch of images: there "copy" goes through
NCHW and back, forward only, as its backward refuses channels_last gradients too. "slice" is max_pool2d of every
s-th channel, for those who know that it is the same.
Gradients end dense in the layout. A forward is that of training (its graph is recorded); "inference" records none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import LAYOUTS, Case, shape_text

__all__ = ["cases"]

Pool = Callable[[Tensor], Tensor]

_KERNEL = (1, 3, 3)
# Stride of LPRNet's pools, and channels, height and width of their input.
_LPRNET = (((1, 1, 1), (64, 22, 92)), ((2, 1, 2), (128, 20, 90)), ((4, 1, 2), (256, 18, 44)))
_WINDOWS = (
    ((3, 2, 1), (24, 112, 112)),
    ((2, 2), (24, 112, 112)),
    ((3, 2, 1), (58, 28, 28)),
    # Spatial pyramids: He et al. 2014, as in YOLOv3-SPP and later.
    ((5, 1, 2), (256, 20, 20)),
    ((9, 1, 4), (256, 20, 20)),
    ((13, 1, 6), (256, 20, 20)),
)
_AVERAGES = (((5, 5), (64, 20, 90)), (((4, 10), (4, 2)), (256, 18, 44)))
_PLANES = ((1024, 7, 7), (512, 14, 14), (256, 18, 44))
_DTYPES = (torch.float32, torch.bfloat16)
_DIRECTIONS = ("forward", "inference", "backward")
# Relative difference of averages in bfloat16, whose gradients torch adds up in bfloat16.
_TOLERANCE = 2e-2


def cases(batch: int) -> Iterator[Case]:
    """MaxPool3d on images, max_pool2d, avg_pool2d and 3d, adaptive and global maxima, in both layouts."""
    for stride, size in _LPRNET:
        name = "max_pool3d s" + "".join(map(str, stride))
        yield from _each(name, (2 * batch, *size), partial(_volume_pools, stride))
    for window, size in _WINDOWS:
        ours, stock = (partial(_call, f, window) for f in (F.max_pool2d, T.max_pool2d))
        name = f"max_pool2d k{window[0]}s{window[1]}"
        yield from _each(name, (batch, *size), _same_pools(ours, stock))
    for window, size in _AVERAGES:
        ours, stock = (partial(_call, f, window) for f in (F.avg_pool2d, T.avg_pool2d))
        yield from _each("avg_pool2d", (2 * batch, *size), _same_pools(ours, stock), _TOLERANCE)
    ours, stock = (partial(_call, f, (_KERNEL, (2, 1, 2))) for f in (F.avg_pool3d, _avg_volume))
    yield from _each("avg_pool3d s212", (2 * batch, 64, 20, 44), _same_pools(ours, stock), _TOLERANCE)
    ours, stock = (partial(_call, f, (4,)) for f in (F.adaptive_max_pool2d, T.adaptive_max_pool2d))
    yield from _each("adaptive_max 4", (batch, 256, 18, 44), _same_pools(ours, stock))
    for size in _PLANES:
        first = _same_pools(F.global_max_pool2d, partial(_call, T.adaptive_max_pool2d, (1,)))
        split = _same_pools(partial(F.global_max_pool2d, ties="split", keepdim=False), _amax)
        yield from _each("global max first", (batch, *size), first)
        yield from _each("global max split", (batch, *size), split)


def _call(function: Callable[..., Tensor], arguments: tuple[object, ...], x: Tensor) -> Tensor:
    return function(x, *arguments)


def _avg_volume(x: Tensor, kernel_size: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """torch's own, which is contiguous and has no half precision, as a user would go on with it."""
    memory_format = LAYOUTS["NCHW"] if x.is_contiguous() else LAYOUTS["NHWC"]
    wide = x.float() if x.dtype == torch.bfloat16 else x
    return T.avg_pool3d(wide, kernel_size, stride).to(x.dtype).contiguous(memory_format=memory_format)


def _amax(x: Tensor) -> Tensor:
    return x.amax((2, 3))


def _same_pools(ours: Pool, stock: Pool) -> Callable[[torch.memory_format], dict[str, Pool]]:
    return lambda memory_format: {"torch": stock, "opswap": ours}


def _volume_pools(stride: tuple[int, int, int], memory_format: torch.memory_format) -> dict[str, Pool]:
    def own(x: Tensor) -> Tensor:
        return T.max_pool3d(x, _KERNEL, stride)

    def copy(x: Tensor) -> Tensor:
        return own(x.contiguous()).contiguous(memory_format=memory_format)

    def cut(x: Tensor) -> Tensor:
        return T.max_pool2d(x[:, :: stride[0]].contiguous(memory_format=memory_format), 3, stride[1:])

    def ours(x: Tensor) -> Tensor:
        return F.max_pool3d(x, _KERNEL, stride)

    stock = {"torch": own} if memory_format is torch.contiguous_format else {"copy": copy}
    return stock | {"slice": cut, "opswap": ours}


def _each(
    name: str,
    size: tuple[int, ...],
    pools: Callable[[torch.memory_format], Mapping[str, Pool]],
    tolerance: float = 0.0,
) -> Iterator[Case]:
    shape = shape_text(size)
    for dtype in _DTYPES:
        for layout, memory_format in LAYOUTS.items():
            for direction in _DIRECTIONS:
                build = partial(_build, pools, size, dtype, memory_format, direction)
                payload = _payload(pools(memory_format)["opswap"], size, dtype)
                short = short_name(dtype)
                ours = {"opswap": layout}
                keeps = direction == "forward"
                yield Case(name, shape, short, direction, build, ours, payload, tolerance, keeps)


def _payload(pool: Pool, size: tuple[int, ...], dtype: torch.dtype) -> int:
    """Half of the bytes of input and output: a copy of as many reads and writes as much as the pool moves."""
    output = pool(torch.empty(size, dtype=dtype, device="meta"))
    return (torch.Size(size).numel() + output.numel()) * dtype.itemsize // 2


def _build(
    pools: Callable[[torch.memory_format], Mapping[str, Pool]],
    size: tuple[int, ...],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    direction: str,
) -> dict[str, Callable[[], Tensor]]:
    x = torch.randn(size).to(dtype).contiguous(memory_format=memory_format).requires_grad_()
    run = {"forward": _forward, "inference": _inference, "backward": _backward}[direction]
    return {
        name: run(pool, x, memory_format)
        for name, pool in pools(memory_format).items()
        if not (name == "copy" and direction == "backward")
    }


def _forward(pool: Pool, x: Tensor, memory_format: torch.memory_format) -> Callable[[], Tensor]:
    return partial(pool, x)


def _inference(pool: Pool, x: Tensor, memory_format: torch.memory_format) -> Callable[[], Tensor]:
    return partial(pool, x.detach())


def _backward(pool: Pool, x: Tensor, memory_format: torch.memory_format) -> Callable[[], Tensor]:
    output = pool(x)
    torch.manual_seed(0)
    gradient = torch.empty_like(output, requires_grad=False).normal_()

    def run() -> Tensor:
        (result,) = torch.autograd.grad(output, x, gradient, retain_graph=True)
        return result.contiguous(memory_format=memory_format)

    return run
