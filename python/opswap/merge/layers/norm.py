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

__all__ = ["BranchBatchNorm", "BranchGroupNorm", "BranchInstanceNorm", "BranchLayerNorm"]

_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


class BranchBatchNorm(Layer):
    """N BatchNorms as one over N * C channels; num_batches_tracked has one count a branch.

    Raises: ValueError where momentum is None (a cumulative average) and the branches have seen different numbers of
        batches.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.eps, self.momentum = first.eps, first.momentum
        self.join(modules, "weight", "bias", *_RUNNING)
        if self.momentum is None and self.num_batches_tracked is not None:
            counts = self.num_batches_tracked.tolist()
            if len(set(counts)) > 1:
                raise ValueError(f"branches: cumulative averages over different numbers of batches: {counts}")

    def _count(self) -> float:
        """Count a batch of every branch; the weight of its statistics in the running ones."""
        if not self.training or self.num_batches_tracked is None:
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked.add_(1)
        return 1.0 / float(self.num_batches_tracked[0]) if self.momentum is None else self.momentum

    @property
    def _of_batch(self) -> bool:
        return self.training or self.running_mean is None

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        momentum = self._count()
        tensors = self.running_mean, self.running_var, self.weight, self.bias
        return F.batch_norm(x, *tensors, self._of_batch, momentum, self.eps)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        momentum = self._count()
        tensors = self.running_mean, self.running_var, self.weight, self.bias
        options = self._of_batch, momentum, self.eps
        return [
            lambda x, own=own: F.batch_norm(x, *own, *options)
            for own in zip(*map(self.pieces, tensors), strict=True)
        ]


class BranchInstanceNorm(Layer):
    """N InstanceNorms as one over N * C channels."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.eps, self.momentum = first.eps, 0.0 if first.momentum is None else first.momentum
        self.track_running_stats = first.track_running_stats
        self.join(modules, "weight", "bias", *_RUNNING)

    def _normalise(self, x: Tensor, mean: Any, var: Any, weight: Any, bias: Any) -> Tensor:
        of_input = self.training or not self.track_running_stats
        return F.instance_norm(x, mean, var, weight, bias, of_input, self.momentum, self.eps)

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        return self._normalise(x, self.running_mean, self.running_var, self.weight, self.bias)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        tensors = self.running_mean, self.running_var, self.weight, self.bias
        return [
            lambda x, own=own: self._normalise(x, *own)
            for own in zip(*map(self.pieces, tensors), strict=True)
        ]


class BranchGroupNorm(Layer):
    """N GroupNorms as one with N times the groups."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.num_groups, self.eps = first.num_groups, first.eps
        self.join(modules, "weight", "bias")

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        return F.group_norm(x, self.num_groups * self.branches, self.weight, self.bias, self.eps)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        tensors = zip(self.pieces(self.weight), self.pieces(self.bias), strict=True)
        options = {"num_groups": self.num_groups, "eps": self.eps}
        return [partial(F.group_norm, weight=w, bias=b, **options) for w, b in tensors]


class BranchLayerNorm(Layer):
    """N LayerNorms: weight and bias (N * normalized_shape[0], *); a shared input is normalised once for all."""

    takes = Form.STACKED
    gives = Form.STACKED
    wide_shared = True

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__(modules)
        first: Any = modules[0]
        self.normalized_shape, self.eps = tuple(first.normalized_shape), first.eps
        self.join(modules, "weight", "bias")

    def wide(self, x: Tensor, mode: str = "wide") -> Tensor:
        shared = mode == "shared"
        y = F.layer_norm(x.unsqueeze(1) if shared else x, self.normalized_shape, eps=self.eps)
        between = y.dim() - 2 - len(self.normalized_shape)
        sizes = (self.branches, *(1,) * between, *self.normalized_shape)
        if self.weight is None:
            return y.expand(-1, self.branches, *(-1,) * (y.dim() - 2)) if shared else y
        weight = self.weight.view(sizes)
        return y * weight if self.bias is None else torch.addcmul(self.bias.view(sizes), y, weight)

    def branch_calls(self) -> list[Callable[[Tensor], Tensor]]:
        tensors = zip(self.pieces(self.weight), self.pieces(self.bias), strict=True)
        options = {"normalized_shape": self.normalized_shape, "eps": self.eps}
        return [partial(F.layer_norm, weight=w, bias=b, **options) for w, b in tensors]
