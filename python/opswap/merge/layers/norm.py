# SPDX-License-Identifier: MIT
"""Normalisation layers of N branches: statistics are per channel or per sample, so that branches never mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..forms import Form
from .layer import Layer

__all__ = [
    "BranchBatchNorm",
    "BranchBatchNorm1d",
    "BranchBatchNorm2d",
    "BranchBatchNorm3d",
    "BranchGroupNorm",
    "BranchInstanceNorm",
    "BranchInstanceNorm1d",
    "BranchInstanceNorm2d",
    "BranchInstanceNorm3d",
    "BranchLayerNorm",
]

_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


class _WithStatistics(Layer):
    """N layers with running statistics as one over N * C channels."""

    options = ("eps", "momentum", "track_running_stats")

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.num_features = first.num_features * len(modules)
        for name in ("affine", *self.options):
            setattr(self, name, getattr(first, name))
        self.join(modules, "weight", "bias", *_RUNNING)


class BranchBatchNorm(_WithStatistics):
    """N BatchNorms as one over N * C channels; num_batches_tracked has one count per branch.

    The subclasses are torch's BatchNorms as well, with num_features = N * C, for code that freezes or collects these.
    Raises: ValueError if momentum is None (a cumulative average) and the branches have seen different numbers of
        batches.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        if self.momentum is None:
            self._cumulative_factor()

    def _cumulative_factor(self) -> float:
        counts = [] if self.num_batches_tracked is None else self.num_batches_tracked.tolist()
        if len(set(counts)) > 1:
            raise ValueError(f"branches: cumulative averages over different numbers of batches: {counts}")
        return 1.0 / counts[0] if counts and counts[0] else 0.0

    def _options(self) -> tuple[bool, float, float]:
        """Count a batch of every branch. Returns: the last arguments of batch_norm, as torch's modules have them."""
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = self._cumulative_factor()
        of_batch = self.training or (self.running_mean is None and self.running_var is None)
        return of_batch, factor, self.eps

    def _tensors(self) -> tuple[Tensor | None, ...]:
        if self.training and not self.track_running_stats:
            return None, None, self.weight, self.bias
        return self.running_mean, self.running_var, self.weight, self.bias

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        options = self._options()
        return F.batch_norm(x, *self._tensors(), *options)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        options = self._options()
        return [
            lambda x, own=own: F.batch_norm(x, *own, *options)
            for own in zip(*map(self.pieces, self._tensors()), strict=True)
        ]


class BranchBatchNorm1d(BranchBatchNorm, nn.BatchNorm1d):
    """N BatchNorm1d."""


class BranchBatchNorm2d(BranchBatchNorm, nn.BatchNorm2d):
    """N BatchNorm2d."""


class BranchBatchNorm3d(BranchBatchNorm, nn.BatchNorm3d):
    """N BatchNorm3d."""


class BranchInstanceNorm(_WithStatistics):
    """N InstanceNorms as one over N * C channels; the subclasses are torch's InstanceNorms as well."""

    def _normalise(self, x: Tensor, mean: Any, var: Any, weight: Any, bias: Any) -> Tensor:
        of_input = self.training or not self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        return F.instance_norm(x, mean, var, weight, bias, of_input, momentum, self.eps)

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        return self._normalise(x, self.running_mean, self.running_var, self.weight, self.bias)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        tensors = self.running_mean, self.running_var, self.weight, self.bias
        return [
            lambda x, own=own: self._normalise(x, *own)
            for own in zip(*map(self.pieces, tensors), strict=True)
        ]


class BranchInstanceNorm1d(BranchInstanceNorm, nn.InstanceNorm1d):
    """N InstanceNorm1d."""


class BranchInstanceNorm2d(BranchInstanceNorm, nn.InstanceNorm2d):
    """N InstanceNorm2d."""


class BranchInstanceNorm3d(BranchInstanceNorm, nn.InstanceNorm3d):
    """N InstanceNorm3d."""


class BranchGroupNorm(Layer, nn.GroupNorm):
    """N GroupNorms as one with N times the groups."""

    options = ("eps",)

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.num_groups, self.num_channels = (
            len(modules) * n for n in (first.num_groups, first.num_channels)
        )
        self.eps, self.affine = first.eps, first.affine
        self.join(modules, "weight", "bias")

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        tensors = zip(self.pieces(self.weight), self.pieces(self.bias), strict=True)
        options = {"num_groups": self.num_groups // self.branches, "eps": self.eps}
        return [partial(F.group_norm, weight=w, bias=b, **options) for w, b in tensors]


class BranchLayerNorm(Layer, nn.LayerNorm):
    """N LayerNorms: weight and bias (N * normalized_shape[0], *); a shared input is normalised once for all.

    normalized_shape is that of one branch.
    """

    takes = Form.STACKED
    gives = Form.STACKED
    wide_shared = True
    options = ("eps",)

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.normalized_shape, self.eps = tuple(first.normalized_shape), first.eps
        self.elementwise_affine = first.elementwise_affine
        self.join(modules, "weight", "bias")

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        shared = mode == "shared"
        y = F.layer_norm(x.unsqueeze(1) if shared else x, self.normalized_shape, eps=self.eps)
        between = y.dim() - 2 - len(self.normalized_shape)
        sizes = (self.branches, *(1,) * between, *self.normalized_shape)
        if self.weight is None:
            return y.expand(-1, self.branches, *(-1,) * (y.dim() - 2)) if shared else y
        weight = self.weight.view(sizes)
        scaled = y * weight if self.bias is None else torch.addcmul(self.bias.view(sizes), y, weight)
        return scaled.to(y.dtype)  # that of the input under autocast, independent of the weight's dtype

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        tensors = zip(self.pieces(self.weight), self.pieces(self.bias), strict=True)
        options = {"normalized_shape": self.normalized_shape, "eps": self.eps}
        return [partial(F.layer_norm, weight=w, bias=b, **options) for w, b in tensors]
