# SPDX-License-Identifier: MIT
"""What the arguments of a batch normalisation must be, with torch's kinds of error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._layout import is_strided
from ._activations import ACTIVATIONS, parse

__all__ = [
    "FLOATS",
    "are_vectors",
    "check",
    "check_activation",
    "check_kinds",
    "count_values",
    "is_covered",
    "moves_apart",
]

FLOATS = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_REDUCED = frozenset({torch.bfloat16, torch.float16})
_NAMES = ("running_mean", "running_var", "weight", "bias")

Vector = Tensor | None


def check_kinds(
    input: Any, vectors: Sequence[Any], training: Any, momentum: Any, eps: Any, activation: Any
) -> None:
    """Raise TypeError for an argument of a wrong type, ValueError for an unknown activation."""
    if not isinstance(input, Tensor):
        raise TypeError(f"batch_norm(): argument 'input' must be Tensor, not {type(input).__name__}")
    for name, vector in zip(_NAMES, vectors, strict=True):
        if vector is not None and not isinstance(vector, Tensor):
            raise TypeError(f"batch_norm(): argument {name!r} must be Tensor, not {type(vector).__name__}")
    if not isinstance(training, bool):
        raise TypeError(f"batch_norm(): argument 'training' must be bool, not {type(training).__name__}")
    for name, value in (("momentum", momentum), ("eps", eps)):
        if not isinstance(value, (float, int, torch.SymFloat, torch.SymInt)):
            raise TypeError(f"batch_norm(): argument {name!r} must be float, not {type(value).__name__}")
    if activation is not None:
        check_activation("batch_norm_act", activation)


def check_activation(name: str, activation: Any) -> None:
    """Raise ValueError unless `parse` accepts `activation`."""
    try:
        known = isinstance(activation, str) and bool(parse(activation))
    except ValueError:
        known = False
    if not known:
        raise ValueError(
            f"{name}: activation must be None or one of {tuple(ACTIVATIONS)}, those with parameters also "
            f'as "leaky_relu(0.1)", got {activation!r}'
        )


def is_covered(input: Tensor) -> bool:
    """False for inputs that only torch supports: other dtypes and layouts, less than two dimensions, no elements.

    In a compiled graph no size is read.
    """
    if input.dtype not in FLOATS or not is_strided(input) or input.dim() < 2:
        return False
    return torch.compiler.is_compiling() or input.numel() > 0


def moves_apart(input: Tensor, vectors: Sequence[Vector], training: bool) -> bool:
    """False if running statistics that move share memory with themselves or with what else the call reads.

    torch moves them channel by channel and reads the parameters afterwards; the kernels read first. In a compiled
    graph only a tensor that is given twice, or expanded, is noticed.

    Args: vectors: running_mean, running_var, weight, bias.
    """
    if not training or vectors[0] is None or vectors[1] is None:
        return True
    mean, var, *parameters = vectors
    read = [t for t in (input, *parameters) if t is not None]
    if mean is var:
        return False
    for other in read:
        if other is mean or other is var:
            return False
    for vector in (mean, var):
        if vector.dim() == 1 and vector.shape[0] > 1 and not vector.stride()[0]:
            return False
    if torch.compiler.is_compiling():
        return True
    of_mean, of_var, *others = map(_range, (mean, var, *read))
    meets = _meet(of_mean, of_var)
    for other in others:
        meets = meets or _meet(of_mean, other) or _meet(of_var, other)
    return not meets


def _range(t: Tensor) -> tuple[int, int]:
    """The addresses of the first element and after the last; (0, 0) for a tensor without memory of its own."""
    if type(t) not in (Tensor, torch.nn.Parameter) or not is_strided(t) or not t.numel():
        return 0, 0
    try:
        first = t.data_ptr()
    except RuntimeError:  # a wrapper of torch.func, a fake tensor
        return 0, 0
    if not first:  # a meta tensor
        return 0, 0
    if t.is_contiguous() or t.is_contiguous(memory_format=torch.channels_last):
        return first, first + t.nbytes
    last = sum((size - 1) * step for size, step in zip(t.shape, t.stride(), strict=True))
    return first, first + (last + 1) * t.element_size()


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def count_values(input: Tensor) -> int:
    """Values of one channel of (N, C, *)."""
    count = input.shape[0]
    for size in input.shape[2:]:
        count *= size
    return count


def check(
    input: Tensor,
    running_mean: Vector,
    running_var: Vector,
    weight: Vector,
    bias: Vector,
    training: bool,
    eps: float,
) -> None:
    """Raise what torch.nn.functional.batch_norm raises for values, sizes and dtypes that do not fit."""
    if input.dtype not in FLOATS:
        raise NotImplementedError(f'"batch_norm" not implemented for {input.dtype}')
    if input.dim() < 2:
        raise RuntimeError(f"batch_norm: expected at least 2 dimensions (N, C, *), got {tuple(input.shape)}")
    if training and count_values(input) == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {input.shape}"
        )
    if training and eps <= 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    if eps < 0:
        raise ValueError(f"batch_norm eps must be non-negative, but got {eps}")
    vectors = (running_mean, running_var, weight, bias)
    if not training:
        for name, vector in zip(_NAMES[:2], vectors, strict=False):
            if vector is None:
                raise RuntimeError(f"{name} must be defined in evaluation mode")
    elif (running_mean is None) != (running_var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    _check_vectors(input, vectors)


def _check_vectors(input: Tensor, vectors: Sequence[Vector]) -> None:
    given = [(name, v) for name, v in zip(_NAMES, vectors, strict=True) if v is not None]
    channels = input.shape[1]
    for name, vector in given:
        if vector.numel() != channels or (vector.dim() != 1 and name.startswith("running")):
            raise RuntimeError(
                f"{name} should contain {channels} elements not {vector.numel()}, got size {tuple(vector.shape)}"
            )
        if vector.device != input.device:
            raise RuntimeError(f"batch_norm: {name} is on {vector.device}, input on {input.device}")
        if name.startswith("running") and vector.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(f"batch_norm is not differentiable with respect to argument {name!r}")
    allowed = {input.dtype, torch.float32} if input.dtype in _REDUCED else {input.dtype}
    dtypes = {vector.dtype for _, vector in given}
    if len(dtypes) > 1 or not dtypes <= allowed:
        found = ", ".join(f"{name} {vector.dtype}" for name, vector in given)
        raise RuntimeError(
            f"batch_norm: mixed dtype (CPU): an input of {input.dtype} needs all parameters in one of "
            f"{sorted(map(str, allowed))}, got {found}"
        )


def are_vectors(input: Tensor, channels: int, *vectors: Any) -> bool:
    """True for vectors of one value per channel, all of the dtype of input, or of float32 beside 16 bits."""
    dtype = None
    for vector in vectors:
        if vector is None:
            continue
        if not isinstance(vector, Tensor) or vector.shape != (channels,) or not vector.is_cpu:
            return False
        if dtype is None:
            dtype = vector.dtype
        elif vector.dtype is not dtype:
            return False
    return dtype is None or dtype is input.dtype or (dtype is torch.float32 and input.dtype in _REDUCED)
