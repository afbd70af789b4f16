# SPDX-License-Identifier: MIT
"""Dropout that keeps what torch's would keep, bit for bit, and leaves its generator where torch would.

On most CPUs torch draws one random number after the other by a function call each. Where a build of it draws in
another way (MKL's generators, on CPUs by Intel), `draws_alike` says so, and torch's own code runs. One bit an element
is kept for the backward instead of a number.

Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15 (2014).
"""

from __future__ import annotations

import os
import threading
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from opswap import _core

from ._function import check_memory, make_eager_apply, needs_graph, plain_cpu, plain_eager, tracing
from ._layout import suggest_memory_format
from ._stats import count_kernel, count_reference

__all__ = ["draws_alike", "dropout"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Elements below which torch's own call is as fast.
_FEWEST = 1024
# torch lets other threads run while it reads or writes a generator's state. A finalizer may draw within a draw: RLock.
_drawing = threading.RLock()


def _fresh_lock() -> None:
    """In a forked child: the thread that held the lock is not there to release it."""
    global _drawing
    _drawing = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock)


@lru_cache(maxsize=1)
def draws_alike() -> bool:
    """True where torch draws its random bits on this CPU as the kernel does. Found by drawing with both, once."""
    try:
        return _draws_alike()
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
    """The bits of a mask, one an element, as bool."""
    places = torch.arange(8, dtype=torch.uint8, device=mask.device)
    return (mask.unsqueeze(1) >> places & 1).flatten()[:count].bool()


@lru_cache(maxsize=64)
def _scale(keep: float, dtype: torch.dtype) -> float:
    """What torch multiplies a kept element with, as it rounds it in this dtype."""
    return torch.ones((), dtype=dtype, device="cpu").div_(keep).item()


def _apply_mask(tensor: Tensor, mask: Tensor, scale: float, strides: tuple[int, ...]) -> Tensor:
    """The kept elements times scale, the others times zero, dense with these strides."""
    if not plain_cpu((tensor, mask)):
        count_reference("dropout")
        factors = (
            _bits(mask, tensor.numel()).to(tensor.dtype) * scale
        )  # bool times float has the default dtype
        return tensor * factors.as_strided(tensor.shape, strides)
    count_kernel("dropout")
    output = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    source = tensor if tensor.stride() == strides else output.copy_(tensor)
    _core.apply_mask(source, mask, scale, output)
    return output


def _setup(ctx: Any, args: tuple[Any, ...], output: Tensor) -> None:
    _, mask, ctx.scale, ctx.strides = args
    ctx.save_for_backward(mask)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None, None, None]:
    if grad is None:
        return None, None, None, None
    (mask,) = ctx.saved_tensors
    run = _apply if plain_eager() and needs_graph((grad,)) else _apply_mask
    return run(grad, mask, ctx.scale, ctx.strides), None, None, None


_apply = make_eager_apply("Dropout", _apply_mask, _setup, _backward)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Zero elements with probability p and multiply the others by 1 / (1 - p); the same elements as torch zeroes.

    Args:
        input: any shape and device; the kernel takes float32, float64, bfloat16 and float16 on the CPU, contiguous or
            channels_last. Everything else, `inplace`, torch.compile, torch.func and torch.jit.trace run torch's
            operator.
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
    if not plain_cpu((input,)):
        check_memory("dropout", input=input)
    if not training or inplace or not isinstance(p, float) or not 0.0 < p < 1.0 or tracing():
        return torch_functional.dropout(input, p, training, inplace)
    if (
        input.dtype not in _DTYPES
        or input.numel() < _FEWEST
        or not plain_cpu((input,))
        or not input.is_contiguous(memory_format=suggest_memory_format(input))
        or not draws_alike()
    ):
        count_reference("dropout")
        return torch_functional.dropout(input, p, training, inplace)
    keep = 1 - p
    mask = _draw(torch.default_generator, keep, input.numel())
    run = _apply if needs_graph((input,)) else _apply_mask
    return run(input, mask, _scale(keep, input.dtype), input.stride())
