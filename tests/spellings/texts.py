# SPDX-License-Identifier: MIT
"""Forwards that make texts of sizes, dtypes and devices: for the message of a check, or to decide by.

A file of its own: pytest changes the code of assert statements in test files.
"""

# ruff: noqa: RUF059, UP031
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, _assert, nn

from .shuffles import by_size


def assert_with_fstring(x: Tensor) -> Tensor:
    assert x.ndim == 4, f"expected 4 dimensions, got {x.ndim}: {x.shape}"
    return by_size(x, 3)


def assert_over_lines(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    assert c % 3 == 0, (
        f"channels {c} of {tuple(x.shape)} "
        f"on {x.device!s}, {x.dtype!r}, {n:>4d} images"
    )  # fmt: skip
    return by_size(x, 3)


def torch_assert(x: Tensor) -> Tensor:
    torch._assert(x.ndim == 4, f"expected 4D input (got {x.ndim}D input)")
    return by_size(x, 3)


def torch_assert_of_names(x: Tensor) -> Tensor:
    """As timm's MaxViT checks the sides of its windows."""
    _, channels, height, _ = x.shape
    groups = [3]
    _assert(
        channels % groups[0] == 0, f"channels ({channels}) must be divisible by {groups[0]}, height {height}"
    )
    _assert((height + channels) % 2 < 2, f"height {height}")
    return by_size(x, 3)


def imported_assert(x: Tensor) -> Tensor:
    _assert(x.shape[1] % 3 == 0, f"channels: {x.shape[1]}, size: {x.shape!r}")
    return by_size(x, 3)


def torch_assert_of_text(x: Tensor) -> Tensor:
    _assert(x.dim() == 4, "size " + str(x.shape))
    return by_size(x, 3)


def raise_with_fstring(x: Tensor) -> Tensor:
    if x.shape[1] % 3:
        raise ValueError(f"channels: {x.shape[1]}", x.dim(), f"{x.dtype}")
    return by_size(x, 3)


def raise_with_percent(x: Tensor) -> Tensor:
    if x.dim() != 4:
        raise ValueError("size %s of %s" % (x.shape, x.dtype))
    return by_size(x, 3)


def raise_with_format(x: Tensor) -> Tensor:
    if x.dim() != 4:
        raise RuntimeError(f"got {x.dim()} dimensions, {x.size(0)} images")
    return by_size(x, 3)


def raise_with_repr(x: Tensor) -> Tensor:
    c = x.shape[1]
    if c % 3 != 0:
        raise ValueError("channels " + repr(c) + f", {len(x)} images, {list(x.shape[2:])}")
    return by_size(x, 3)


def after_a_module(self: nn.Module, x: Tensor) -> Tensor:
    y = self.before(x)
    if y.shape[2] < 2:
        raise ValueError(f"too low: {y.shape[2]} rows of {y.shape}, made of {x.shape}")
    return by_size(y, 3)


MESSAGES = (
    assert_with_fstring,
    assert_over_lines,
    torch_assert,
    torch_assert_of_names,
    imported_assert,
    torch_assert_of_text,
    raise_with_fstring,
    raise_with_percent,
    raise_with_format,
    raise_with_repr,
)


class LookingError(ValueError):
    def __init__(self, text: str) -> None:
        super().__init__("four" if "4" in text else "other")


def _fails(text: str) -> ValueError:
    return ValueError("four" if "4" in text else "other")


def in_a_test(x: Tensor) -> Tensor:
    assert f"{x.shape[2]}" in ("4", "5"), f"height {x.shape[2]}"
    return by_size(x, 3)


def in_a_test_by_percent(x: Tensor) -> Tensor:
    wanted = "%s"
    assert wanted % x.shape[2] in ("4", "5"), "height"
    return by_size(x, 3)


def in_a_torch_assert(x: Tensor) -> Tensor:
    _assert(f"{x.shape[2]}" in ("4", "5"), "height")
    return by_size(x, 3)


def in_a_torch_assert_by_percent(x: Tensor) -> Tensor:
    wanted = "%s"
    _assert(wanted % x.shape[2] in ("4", "5"), f"height {x.shape[2]}")
    return by_size(x, 3)


def kept_in_a_variable(x: Tensor) -> Tensor:
    text = f"{x.shape[2]}"
    assert text in ("4", "5"), text
    return by_size(x, 3)


def an_error_that_looks(x: Tensor) -> Tensor:
    if x.dim() != 4:
        raise LookingError(f"got {x.dim()} dimensions")
    return by_size(x, 3)


def a_function_that_looks(x: Tensor) -> Tensor:
    if x.dim() != 4:
        raise _fails(f"got {x.dim()} dimensions")
    return by_size(x, 3)


def a_message_that_is_cut(x: Tensor) -> Tensor:
    assert x.dim() == 4, f"got {x.shape}"[:6]
    return by_size(x, 3)


def a_message_that_is_padded(x: Tensor) -> Tensor:
    assert x.dim() == 4, "%12s" % x.dim()
    return by_size(x, 3)


def a_message_with_a_choice(x: Tensor) -> Tensor:
    assert x.dim() == 4, "four" if str(x.shape[0]) == "4" else "other"
    return by_size(x, 3)


def a_message_by_another_question(x: Tensor) -> Tensor:
    if x.shape[1] % 4:
        raise ValueError("even" if x.shape[1] % 2 == 0 else "odd")
    return by_size(x, 2)


def a_message_of_an_integer(x: Tensor) -> Tensor:
    assert x.shape[1] % 4 == 0, f"got {int(x.shape[1])} channels"
    return by_size(x, 2)


def an_error_by_another_question(x: Tensor) -> Tensor:
    if x.shape[1] % 4:
        if x.shape[1] % 2:
            raise TypeError("odd")
        raise ValueError("even")
    return by_size(x, 2)


def of_elements(x: Tensor) -> Tensor:
    assert x.dim() == 4, f"{x}"
    return by_size(x, 3)


def two_statements(x: Tensor) -> Tensor:
    # fmt: off
    assert x.dim() == 4, "dimensions"; k = 2 if f"{x.shape[2]}" == "4" else 3  # noqa: E702
    # fmt: on
    return by_size(x, k)


def by_the_dtype(x: Tensor) -> Tensor:
    return by_size(x, 3) if str(x.dtype) == "torch.float32" else by_size(x, 2)


def by_the_device(x: Tensor) -> Tensor:
    return x if "cuda" in f"{x.device}" else by_size(x, 3)


def by_a_table(x: Tensor) -> Tensor:
    return by_size(x, {"4x8": 3, "5x8": 2}[f"{x.shape[2]}x{x.shape[3]}"])


BY_TYPE = (by_the_dtype, by_the_device)
DECIDING = (
    by_a_table,
    in_a_test,
    in_a_test_by_percent,
    in_a_torch_assert,
    in_a_torch_assert_by_percent,
    kept_in_a_variable,
    two_statements,
)
LEFT = (
    an_error_that_looks,
    a_function_that_looks,
    a_message_that_is_cut,
    a_message_that_is_padded,
    a_message_with_a_choice,
    a_message_by_another_question,
    a_message_of_an_integer,
    an_error_by_another_question,
    of_elements,
)


class BatchNormAct(nn.BatchNorm2d):
    """A BatchNorm with its activation, whose forward spells out that of torch, as libraries of models have it."""

    def __init__(self, channels: int, act: nn.Module | None = None) -> None:
        super().__init__(channels)
        self.drop = nn.Identity()
        self.act = nn.ReLU(inplace=True) if act is None else act

    def forward(self, x: Tensor) -> Tensor:
        _assert(x.ndim == 4, f"expected 4D input (got {x.ndim}D input)")
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        by_batch = self.training or (self.running_mean is None and self.running_var is None)
        mean, var = self.running_mean, self.running_var
        if self.training and not self.track_running_stats:
            mean = var = None
        x = F.batch_norm(x, mean, var, self.weight, self.bias, by_batch, factor, self.eps)
        return self.act(self.drop(x))
