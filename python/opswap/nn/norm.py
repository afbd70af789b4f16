# SPDX-License-Identifier: MIT
"""Batch normalisation and the activation that follows it, as one module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from opswap import functional as F
from opswap.ops.norm import check_activation, infer, torch_batch_norm

from ._activation import kept

__all__ = [
    "BatchNormAct1d",
    "BatchNormAct2d",
    "BatchNormAct3d",
    "Norm",
    "NormCall",
    "Pooling",
    "apply_norm",
    "apply_norm_pool",
    "apply_torch_norm",
]

_Vector = Tensor | None


class NormCall(NamedTuple):
    """A call of torch.nn.functional.batch_norm in place of a module: what is read of one, by the same names."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    num_batches_tracked: Tensor | None
    training: bool
    momentum: float
    eps: float

    @property
    def track_running_stats(self) -> bool:
        return self.running_mean is not None

    def _check_input_dim(self, input: Tensor) -> None:
        """The caller has."""


class Pooling(NamedTuple):
    """The window of a max pool over planes, as of `opswap.functional.max_pool2d`."""

    kernel_size: int | Sequence[int]
    stride: int | Sequence[int] | None = None
    padding: int | Sequence[int] = 0
    dilation: int | Sequence[int] = 1
    ceil_mode: bool = False


Norm = nn.modules.batchnorm._BatchNorm | NormCall


def apply_norm(norm: Norm, input: Tensor, activation: str | None, *, inplace: bool = False) -> Tensor:
    """The forward of torch's BatchNorm on `norm`, then the activation; counts the batch as torch's does.

    Args: inplace: the result may overwrite `input`, which nothing else reads afterwards.
    """
    arguments = _arguments(norm, input)
    if inplace:
        return infer(input, *arguments, activation, inplace=True)
    return F.batch_norm_act(input, *arguments, activation)


def apply_norm_pool(norm: Norm, input: Tensor, activation: str | None, pooling: Pooling) -> Tensor:
    """`apply_norm`, and a max pool over planes of its result."""
    options = pooling._asdict()
    return F.batch_norm_act_max_pool2d(input, *_arguments(norm, input), activation, **options)


def apply_torch_norm(norm: nn.modules.batchnorm._BatchNorm, input: Tensor) -> Tensor:
    """The forward of torch's BatchNorm on `norm`, where `vector_misread` is true of its parameters and statistics."""
    return torch_batch_norm(input, *_arguments(norm, input))


def _arguments(norm: Norm, input: Tensor) -> tuple[_Vector, _Vector, _Vector, _Vector, bool, float, float]:
    """What torch's BatchNorm passes to the function, behind the input. Counts the batch."""
    norm._check_input_dim(input)
    momentum = 0.0 if norm.momentum is None else norm.momentum
    if norm.training and norm.track_running_stats and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            momentum = 1.0 / float(norm.num_batches_tracked)
    of_batch = True if norm.training else (norm.running_mean is None and norm.running_var is None)
    running = not norm.training or norm.track_running_stats
    mean, var = (norm.running_mean, norm.running_var) if running else (None, None)
    return mean, var, norm.weight, norm.bias, of_batch, momentum, norm.eps


class _BatchNormAct(nn.modules.batchnorm._BatchNorm):
    """What the three classes share: the activation, by name and as the child `act`.

    The forward does not call the child, which is there for torch.nn.SyncBatchNorm.convert_sync_batchnorm; see
    `_activation`.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        activation: str | None = "relu",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if activation is not None:
            check_activation(type(self).__name__, activation)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.activation = activation
        if activation is not None:
            self.act = kept(activation)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"

    def forward(self, input: Tensor) -> Tensor:
        return apply_norm(self, input, self.activation)


class BatchNormAct1d(_BatchNormAct, nn.BatchNorm1d):
    """torch.nn.BatchNorm1d and an activation in one pass, with the state_dict of torch.nn.BatchNorm1d.

    Args: as torch.nn.BatchNorm1d: num_features, eps, momentum, affine, track_running_stats, device, dtype.
        activation: None, or a text as for `opswap.functional.batch_norm_act`: "relu", "silu", "leaky_relu(0.1)".
    Shape: (N, C) or (N, C, L) -> the same, memory format kept.
    Raises: ValueError for another activation; in the call as `opswap.functional.batch_norm_act`.
    """


class BatchNormAct2d(_BatchNormAct, nn.BatchNorm2d):
    """torch.nn.BatchNorm2d and an activation in one pass, in the manner of `BatchNormAct1d`.

    Shape: (N, C, H, W) -> the same, memory format kept.
    """


class BatchNormAct3d(_BatchNormAct, nn.BatchNorm3d):
    """torch.nn.BatchNorm3d and an activation in one pass, in the manner of `BatchNormAct1d`.

    Shape: (N, C, D, H, W) -> the same, memory format kept.
    """
