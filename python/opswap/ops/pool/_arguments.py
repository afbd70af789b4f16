# SPDX-License-Identifier: MIT
"""What a pool's arguments must be: windows, output sizes, inputs and dtypes, with torch's kinds of error."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._layout import is_strided

__all__ = [
    "FLOATS",
    "INTEGERS",
    "Window",
    "as_torch",
    "autocast_to_float32",
    "check_dtype",
    "check_tensor",
    "fits",
    "make_window",
    "pooled_size",
    "require_bool",
    "require_int",
]

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})

_COUNTS = {2: "two", 3: "three"}


class Window(NamedTuple):
    """A sliding window: one int per spatial dimension in each tuple."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool

    def output_size(self, input_size: Sequence[int]) -> tuple[int, ...]:
        """Windows along each spatial dimension, not positive if none fits.

        With ceil_mode the last window may reach past the right padding, but has to start inside the input or
        the left padding.
        """
        sizes = []
        for size, kernel, stride, padding, dilation in zip(input_size, *self[:4], strict=True):
            free = size + 2 * padding - dilation * (kernel - 1) - 1
            count = (free + (stride - 1 if self.ceil_mode else 0)) // stride + 1
            if self.ceil_mode and (count - 1) * stride >= size + padding:
                count -= 1
            sizes.append(count)
        return tuple(sizes)

    def without_depth(self) -> Window:
        """The window of the last two dimensions."""
        return Window(*(values[1:] for values in self[:4]), self.ceil_mode)


def require_int(name: str, argument: str, value: Any) -> int:
    """`value` as an int; as in torch, a bool is not an int, and a one-element integer tensor is."""
    if isinstance(value, torch.SymInt):
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        kind = type(value).__name__
        raise TypeError(f"{name}(): {argument} must be an int, got {value!r} of type {kind}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name}(): {argument} must be a number of 64 bits, got {number}")
    return number


def require_bool(name: str, argument: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}(): {argument} must be a bool, got {value!r} of type {type(value).__name__}")
    return value


def _per_dimension(name: str, argument: str, value: Any, count: int) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        return (require_int(name, argument, value),) * count
    values = tuple(require_int(name, argument, v) for v in value)
    if len(values) == 1:
        return values * count
    if len(values) != count:
        raise RuntimeError(
            f"{name}: {argument} must be a single int or a tuple of {_COUNTS[count]} ints, got {tuple(value)}"
        )
    return values


def make_window(
    name: str,
    spatial: int,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
    ceil_mode: Any = False,
) -> Window:
    """The window that these arguments of a torch pool describe; a stride of None or () is the kernel size.

    Raises: TypeError for an argument that is not an int or a bool; RuntimeError for a wrong number of ints, a kernel,
        stride or dilation that is not positive, a negative padding or one over half of the kernel.
    """
    kernel = _per_dimension(name, "kernel_size", kernel_size, spatial)
    steps = kernel
    if stride is not None and not (isinstance(stride, (list, tuple)) and not stride):
        steps = _per_dimension(name, "stride", stride, spatial)
    window = Window(
        kernel,
        steps,
        _per_dimension(name, "padding", padding, spatial),
        _per_dimension(name, "dilation", dilation, spatial),
        require_bool(name, "ceil_mode", ceil_mode),
    )
    for argument, values in (("kernel_size", kernel), ("stride", steps), ("dilation", window.dilation)):
        if min(values) <= 0:
            raise RuntimeError(f"{name}: {argument} must be greater than zero, got {values}")
    if min(window.padding) < 0:
        raise RuntimeError(f"{name}: padding must be non-negative, got {window.padding}")
    if max(window.padding) and any(p > k // 2 for p, k in zip(window.padding, kernel, strict=True)):
        raise RuntimeError(
            f"{name}: padding must be at most half of kernel_size, got {window.padding} and {kernel}"
        )
    return window


def check_tensor(name: str, input: Any) -> None:
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): input must be a tensor, got {type(input).__name__}")


def fits(input: Tensor, spatial: int) -> bool:
    """True for (C, *) or (N, C, *) with `spatial` dimensions after C, empty at most in N; the rest is torch's."""
    if not is_strided(input):
        return False
    return input.dim() in (spatial + 1, spatial + 2) and 0 not in input.shape[-spatial - 1 :]


def as_torch(name: str, spatial: int, pool: Callable[..., Any], input: Tensor, *arguments: Any) -> Any:
    """What torch's `pool(input, *arguments)` returns, of an input that does not fit; its class of error."""
    try:
        return pool(input, *arguments)
    except (IndexError, RuntimeError, ValueError) as error:
        if not is_strided(input):
            raise
        size = tuple(input.shape)
        expected = f"{spatial + 1} or {spatial + 2} dimensions, of which only the batch may be empty"
        raise type(error)(f"{name}: expected {expected}, got size {size}") from error


def pooled_size(name: str, input: Tensor, window: Window, channel_step: int) -> tuple[int, ...]:
    """The size (N, ceil(C / channel_step), *O) that a pool gives (N, C, *S); raises if no window fits."""
    output = window.output_size(input.shape[2:])
    if min(output) <= 0:
        kernel, _, padding, dilation = (tuple(values) for values in window[:4])
        raise RuntimeError(
            f"{name}: input of size {tuple(input.shape)} is too small for kernel_size {kernel}, "
            f"padding {padding}, dilation {dilation}: the output would have size {output}"
        )
    return (input.shape[0], (input.shape[1] + channel_step - 1) // channel_step, *output)


def check_dtype(name: str, input: Tensor, supported: frozenset[torch.dtype]) -> None:
    if input.dtype not in supported:
        raise NotImplementedError(f'"{name}" not implemented for {input.dtype}')


def autocast_to_float32(input: Tensor) -> Tensor:
    """Autocast on the CPU runs torch's three-dimensional pools in float32."""
    reduced = input.dtype in (torch.float16, torch.bfloat16)
    if reduced and input.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        return input.float()
    return input
