# SPDX-License-Identifier: MIT
"""Dropout that keeps what torch's would keep, bit for bit, and leaves its generator where torch would.

On most CPUs torch draws one random number after the other by a function call each. Where a build of it draws in
another way (MKL's generators, on CPUs by Intel), `draws_alike` says so, and torch's own code runs. One bit per element
is kept for the backward instead of a number.

Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15 (2014).
"""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from opswap import _core

from ._derivatives import linear_pair
from ._function import (
    check_memory,
    needs_graph,
    plain_cpu,
    seen_by_tracer,
    tracing,
    without_subclasses,
)
from ._layout import suggest_memory_format
from ._operator import Operator
from ._stats import count_kernel, count_reference

__all__ = ["FEWEST", "draws_alike", "dropout", "dropout_pays"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Elements below which torch's own call is as fast.
FEWEST = 1024
# torch lets other threads run while it reads or writes a generator's state. A finalizer may draw within a draw: RLock.
_drawing = threading.RLock()


def _fresh_lock() -> None:
    """In a forked child: the thread that held the lock is not there to release it."""
    global _drawing
    _drawing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


def draws_alike() -> bool:
    """True if torch draws its random bits on this CPU as the kernel does. Found by drawing with both, once."""
    try:
        return _drew_alike()
    except RuntimeError:  # no thread can be started now
        return False


@lru_cache(maxsize=1)
def _drew_alike() -> bool:
    """In a thread of its own: no mode, trace or transform of the caller sees the draws."""
    with ThreadPoolExecutor(1) as pool:
        drawn = pool.submit(_draws_alike)
    try:
        return drawn.result()
    except RuntimeError:  # a generator whose state is laid out in another way
        return False


def _draws_alike() -> bool:
    # A generator of its own; the second round begins at an odd place of the sequence, and both cross its end.
    for keep in (0.5, 0.3):
        theirs, ours = (torch.Generator("cpu").manual_seed(2) for _ in range(2))
        bits = torch.empty(1000, dtype=torch.bool, device="cpu")
        for _ in range(2):
            bits.bernoulli_(keep, generator=theirs)
            if not torch.equal(bits, _bits(_draw(ours, keep, bits.numel()), bits.numel())):
                return False
            for generator in (theirs, ours):
                torch.randint(7, (1,), generator=generator, device="cpu")
        if not torch.equal(theirs.get_state(), ours.get_state()):
            return False
    return True


def _draw(generator: torch.Generator, keep: float, count: int) -> Tensor:
    """(count + 7) // 8 bytes: the bits of `count` elements in the order of memory, the first one lowest."""
    mask = torch.empty((count + 7) // 8, dtype=torch.uint8, device="cpu")
    with _drawing:
        _core.draw_mask(generator, keep, count, mask)
    return mask


def _bits(mask: Tensor, count: int) -> Tensor:
    """The bits of a mask, one per element, as bool."""
    places = torch.arange(8, dtype=torch.uint8, device=mask.device)
    return (mask.unsqueeze(1) >> places & 1).flatten()[:count].bool()


@lru_cache(maxsize=64)
def _scale(keep: float, dtype: torch.dtype) -> float:
    """1 / keep, what torch multiplies a kept element with, as it rounds it in this dtype.

    In Python's numbers: no mode, trace or transform of the caller sees a tensor.
    """
    if dtype is torch.float64:
        return 1 / keep
    single = _rounded(1 / _rounded(keep, "f"), "f")
    if dtype is torch.bfloat16:
        (bits,) = struct.unpack("I", struct.pack("f", single))
        nearest = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
        return struct.unpack("f", struct.pack("I", nearest))[0]
    return single if dtype is torch.float32 else _rounded(single, "e")


def _rounded(value: float, code: str) -> float:
    """`value` in a format of struct, infinite beyond its range."""
    try:
        return struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return math.inf


def _is_recorded(input: Tensor) -> bool:
    """True if a graph should contain the operator. If torch then draws in another way, its kernel does as well.

    Not in one of torch.compile, which fuses torch's own with what is around it.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    return seen_by_tracer() and input.is_cpu and input.dtype in _DTYPES


# --- the mask of a draw ----------------------------------------------------------------------------------------------


def _apply_mask(input: Tensor, mask: Tensor, scale: float, stride: Sequence[int]) -> Tensor:
    output = input.new_empty_strided(input.shape, stride)
    source = input if input.stride() == tuple(stride) else output.copy_(input)
    # A hook on saved tensors may return other strides.
    _core.apply_mask(source, mask.contiguous(), scale, output)
    count_kernel("dropout")
    return output


def _apply_mask_in_torch(input: Tensor, mask: Tensor, scale: float, stride: Sequence[int]) -> Tensor:
    factors = _bits(mask, input.numel()).to(input.dtype) * scale  # bool times float has the default dtype
    return input * factors.as_strided(input.shape, stride)


def _mask_reference(input: Tensor, mask: Tensor, scale: float, stride: Sequence[int]) -> Tensor:
    output = input.new_empty_strided(input.shape, tuple(stride))
    return output.copy_(_apply_mask_in_torch(input, mask, scale, stride))


def _mask_fake(input: Tensor, mask: Tensor, scale: float, stride: Sequence[int]) -> Tensor:
    return input.new_empty_strided(input.shape, tuple(stride))


def _mask_batch(run: Callable[..., Tensor], info: Any, in_dims: Sequence[Any], *arguments: Any) -> Any:
    """One call per example: each has its own bits, which begin in a new byte."""
    input, mask, scale, stride = arguments
    parts = [
        run(_example(input, in_dims[0], i), _example(mask, in_dims[1], i), scale, stride)
        for i in range(info.batch_size)
    ]
    return torch.stack(parts), 0


def _example(tensor: Tensor, dim: int | None, index: int) -> Tensor:
    return tensor if dim is None else tensor.select(dim, index)


# The kept elements times scale, the others times zero, dense with these strides. It is its own gradient.
_masked = Operator(
    "dropout_mask(Tensor input, Tensor mask, float scale, SymInt[] stride) -> Tensor",
    _apply_mask,
    _mask_reference,
    _mask_fake,
    batch=_mask_batch,
    batched=_apply_mask_in_torch,
)


def _keep_mask(constants: tuple[Any, ...], tensors: Sequence[Tensor], _: Any) -> Any:
    return tensors[1:], constants


linear_pair(_masked, _masked, _keep_mask, _masked)
_apply_plain = _masked.make_apply(lambda constants, input, mask: _apply_mask(input, mask, *constants))


# --- draw and apply, for what records operators ----------------------------------------------------------------------


def _is_covered(input: Tensor) -> bool:
    dense = input.is_contiguous(memory_format=suggest_memory_format(input))
    return input.dtype in _DTYPES and dense and draws_alike()


def _drop(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
    if not _is_covered(input):
        return _drop_in_torch(input, p)
    mask = _draw(torch.default_generator, 1 - p, input.numel())
    return _apply_mask(input, mask, _scale(1 - p, input.dtype), input.stride()), mask


def _drop_in_torch(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
    count = input.numel()
    bits = torch.empty(-(-count // 8) * 8, dtype=torch.bool, device=input.device)
    bits[:count].bernoulli_(1 - p)
    places = torch.arange(8, dtype=torch.uint8, device=input.device)
    mask = (bits.view(-1, 8).to(torch.uint8) << places).sum(1, dtype=torch.uint8)
    stride = torch.empty_like(input).stride()
    return _mask_reference(input, mask, _scale(1 - p, input.dtype), stride), mask


def _drop_fake(input: Tensor, p: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), input.new_empty((input.numel() + 7) // 8, dtype=torch.uint8)


def _drop_batch(
    run: Callable[..., Any], info: Any, in_dims: Sequence[Any], input: Tensor, p: float
) -> tuple[Any, Any]:
    if info.randomness == "error":
        raise RuntimeError(
            "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' "
            "randomness flags on vmap or perform the randomness operation out of vmap"
        )
    if info.randomness == "same":
        _, mask = run(_example(input, in_dims[0], 0).contiguous(), p)
        examples = [_example(input, in_dims[0], i).contiguous() for i in range(info.batch_size)]
        parts = [_masked(t, mask, _scale(1 - p, t.dtype), t.stride()) for t in examples]
        return (torch.stack(parts), mask), (0, None)
    outputs, masks = zip(
        *[run(_example(input, in_dims[0], i), p) for i in range(info.batch_size)], strict=True
    )
    return (torch.stack(outputs), torch.stack(masks)), (0, 0)


def _keep_drawn(constants: tuple[Any, ...], tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> Any:
    keep = 1 - constants[0]
    return outputs[1:], (_scale(keep, tensors[0].dtype), tuple(outputs[0].stride()))


# output: dense as torch.empty_like(input) is; mask: (count + 7) // 8 bytes, the bits of the kept elements in the order
# of the output's memory, the first one lowest.
_operator = Operator(
    "dropout(Tensor input, float p) -> (Tensor output, Tensor mask)",
    _drop,
    _drop_in_torch,
    _drop_fake,
    differentiable=1,
    batch=_drop_batch,
    tags=(torch.Tag.nondeterministic_seeded,),
)
linear_pair(_operator, _masked, _keep_drawn, _masked)


def dropout_pays(input: Tensor) -> bool:
    """False for a tensor so small that torch's own call is as fast; True while torch.compile traces."""
    return torch.compiler.is_compiling() or input.numel() >= FEWEST


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero elements with probability p and multiply the others by 1 / (1 - p); the same elements as torch zeroes.

    Args:
        input: any shape and device; the kernel supports float32, float64, bfloat16 and float16 on the CPU, contiguous
            or channels_last. Everything else, `inplace`, torch.func and torch.jit.trace run torch's operator;
            torch.compile, torch.export and make_fx record `opswap::dropout`.
        p: in [0, 1].
        training: False returns the input.
        inplace: write over the input.

    Returns: like the input, in its memory format. torch's default generator is left as torch.nn.functional.dropout
        would leave it, for the same seed; as with torch's, the order of draws by other threads is not defined.
        If a thread begins to draw inside torch in the microseconds in which the generator's new state is written,
        it may repeat numbers: torch has no lock for both.

    Raises: as torch.nn.functional.dropout.

    Source: torch.nn.functional.dropout.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(dropout, (input,), input, p=p, training=training, inplace=inplace)
    ordinary = without_subclasses((input,)) if training and not inplace else None
    if ordinary is not None:
        return dropout(*ordinary, p, training)
    if isinstance(input, Tensor) and not plain_cpu((input,)):
        check_memory("dropout", input=input)
    plain = isinstance(input, Tensor) and isinstance(p, float) and 0.0 < p < 1.0
    if not training or inplace or not plain or tracing():
        return torch_functional.dropout(input, p, training, inplace)
    if _is_recorded(input):
        return _operator(input, p)[0]
    if (
        input.dtype not in _DTYPES
        or input.numel() < FEWEST
        or not plain_cpu((input,))
        or not input.is_contiguous(memory_format=suggest_memory_format(input))
        or not draws_alike()
    ):
        if not torch.compiler.is_compiling():
            count_reference("dropout")
        return torch_functional.dropout(input, p, training, inplace)
    keep = 1 - p
    mask = _draw(torch.default_generator, keep, input.numel())
    scale, stride = _scale(keep, input.dtype), input.stride()
    if needs_graph((input,)):
        return _apply_plain((scale, stride), input, mask)
    return _apply_mask(input, mask, scale, stride)
