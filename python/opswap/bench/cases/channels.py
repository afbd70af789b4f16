# SPDX-License-Identifier: MIT
"""Channel operators at the shapes of ShuffleNetV2 x1.0, against the model zoo's form and torch's own.

"zoo" is cat, view, transpose, contiguous, view, as the published models write it; "native" calls
torch.channel_shuffle. Both end with results that are contiguous in the layout, as the fused operator's are.
A forward is that of training (its graph is recorded) wherever the dtype has gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from opswap import functional as F
from opswap._table import short_name
from opswap.bench.case import LAYOUTS, Case

__all__ = ["cases"]

_SIZES = ((58, 28), (116, 14), (232, 7))
_GROUPS = ((2, 116), (3, 120), (4, 116), (8, 120))
_COMMON = (torch.float32, torch.bfloat16)
_RARE = (torch.float64, torch.int8)

Operator = Callable[..., tuple[Tensor, ...]]


def cases(batch: int) -> Iterator[Case]:
    """cat + shuffle + chunk, cat + shuffle in both layouts; shuffle alone, which is torch's own in NCHW, in NHWC."""
    for name, operators in (("cat_shuffle_chunk", _CHUNK), ("cat_shuffle", _FULL)):
        for channels, size in _SIZES:
            dtypes = _COMMON + (_RARE if (channels, size) == _SIZES[0] else ())
            build = partial(_pair, batch, channels, size)
            shape = f"{batch},{channels},{size},{size}"
            yield from _each(name, operators, shape, dtypes, build, 2, LAYOUTS)
    for groups, channels in _GROUPS:
        dtypes = _COMMON + (_RARE if groups == 2 else ())
        build = partial(_single, batch, channels, 28)
        shuffles = {key: partial(operator, groups=groups) for key, operator in _SHUFFLE.items()}
        last = {"NHWC": LAYOUTS["NHWC"]}
        yield from _each(f"shuffle g={groups}", shuffles, f"{batch},{channels},28,28", dtypes, build, 1, last)


def _each(
    name: str,
    operators: Mapping[str, Operator],
    shape: str,
    dtypes: tuple[torch.dtype, ...],
    inputs: Callable[[torch.dtype, torch.memory_format], tuple[Tensor, ...]],
    operands: int,
    layouts: Mapping[str, torch.memory_format],
) -> Iterator[Case]:
    sizes = [int(s) for s in shape.split(",")]
    for dtype in dtypes:
        payload = operands * torch.Size(sizes).numel() * dtype.itemsize
        for layout, memory_format in layouts.items():
            for direction in ("forward", "backward") if dtype.is_floating_point else ("forward",):
                build = partial(_build, operators, inputs, dtype, memory_format, direction)
                short = short_name(dtype)
                yield Case(name, shape, short, direction, build, {"opswap": layout}, payload)


def _build(
    operators: Mapping[str, Operator],
    make_inputs: Callable[[torch.dtype, torch.memory_format], tuple[Tensor, ...]],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    direction: str,
) -> dict[str, Callable[[], Any]]:
    inputs = make_inputs(dtype, memory_format)
    if dtype.is_floating_point:
        inputs = tuple(t.detach().requires_grad_() for t in inputs)
    forward = {name: partial(op, *inputs, memory_format=memory_format) for name, op in operators.items()}
    if direction == "forward":
        return forward
    outputs = forward["opswap"]()
    gradients = tuple(_random(t.shape, dtype, memory_format) for t in outputs)
    return {name: _backward(run(), inputs, gradients, memory_format) for name, run in forward.items()}


def _backward(
    outputs: tuple[Tensor, ...],
    inputs: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
    memory_format: torch.memory_format,
) -> Callable[[], tuple[Tensor, ...]]:
    def run() -> tuple[Tensor, ...]:
        results = torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)
        return _dense(results, memory_format)

    return run


def _random(size: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    return (torch.randn(size) * 40).to(dtype).contiguous(memory_format=memory_format)


def _pair(
    batch: int, channels: int, size: int, dtype: torch.dtype, memory_format: torch.memory_format
) -> tuple[Tensor, Tensor]:
    """Two inputs; the first is half of a tensor twice as wide, as the untouched branch of a block is."""
    wide = _random((batch, 2 * channels, size, size), dtype, memory_format)
    return wide[:, :channels], _random((batch, channels, size, size), dtype, memory_format)


def _single(
    batch: int, channels: int, size: int, dtype: torch.dtype, memory_format: torch.memory_format
) -> tuple[Tensor]:
    return (_random((batch, channels, size, size), dtype, memory_format),)


def _dense(tensors: tuple[Tensor, ...], memory_format: torch.memory_format) -> tuple[Tensor, ...]:
    return tuple(t.contiguous(memory_format=memory_format) for t in tensors)


def _zoo_shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def _stock_chunk(shuffle: Callable[[Tensor, int], Tensor], a: Tensor, b: Tensor, memory_format: Any) -> Any:
    return _dense(shuffle(torch.cat((a, b), 1), 2).chunk(2, 1), memory_format)


def _stock_full(shuffle: Callable[[Tensor, int], Tensor], a: Tensor, b: Tensor, memory_format: Any) -> Any:
    return _dense((shuffle(torch.cat((a, b), 1), 2),), memory_format)


def _stock_shuffle(
    shuffle: Callable[[Tensor, int], Tensor], x: Tensor, groups: int, memory_format: Any
) -> Any:
    return _dense((shuffle(x, groups),), memory_format)


def _opswap_chunk(a: Tensor, b: Tensor, memory_format: torch.memory_format) -> tuple[Tensor, ...]:
    return F.cat_channel_shuffle_split((a, b), 2)


def _opswap_full(a: Tensor, b: Tensor, memory_format: torch.memory_format) -> tuple[Tensor, ...]:
    return (F.cat_channel_shuffle((a, b), 2),)


def _opswap_shuffle(x: Tensor, groups: int, memory_format: torch.memory_format) -> tuple[Tensor, ...]:
    return (F.channel_shuffle(x, groups),)


def _variants(stock: Callable[..., Any], ours: Operator) -> dict[str, Operator]:
    return {
        "zoo": partial(stock, _zoo_shuffle),
        "native": partial(stock, torch.channel_shuffle),
        "opswap": ours,
    }


_CHUNK = _variants(_stock_chunk, _opswap_chunk)
_FULL = _variants(_stock_full, _opswap_full)
_SHUFFLE = _variants(_stock_shuffle, _opswap_shuffle)
