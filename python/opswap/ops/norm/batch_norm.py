# SPDX-License-Identifier: MIT
"""BatchNorm and the activation that follows it."""

from __future__ import annotations

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from ._arguments import check, check_kinds
from ._reference import reference

__all__ = ["batch_norm", "batch_norm_act", "batch_norm_relu", "infer"]


def infer(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
    *,
    inplace: bool = False,
) -> Tensor:
    """`batch_norm_act` where no gradient is needed; with `inplace` the result lies where the input lay.

    Args: as `batch_norm_act`; `inplace` asks that nobody else reads `input` any more. Where the result cannot be
        written there (another layout or device, a gradient is needed), a new tensor is returned.
    """
    result = batch_norm_act(
        input, running_mean, running_var, weight, bias, training, momentum, eps, activation
    )
    return input.copy_(result) if inplace else result


def batch_norm_act(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    activation: str | None = None,
) -> Tensor:
    """torch.nn.functional.batch_norm and an activation in one."""
    vectors = (running_mean, running_var, weight, bias)
    if has_torch_function((input, *vectors)):
        arguments = (input, *vectors, training, momentum, eps, activation)
        return handle_torch_function(batch_norm_act, (input, *vectors), *arguments)
    check_kinds(input, vectors, training, momentum, eps, activation)
    check(input, *vectors, training, eps)
    return reference(input, *vectors, training, momentum, eps, activation)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`batch_norm_act` without an activation: torch.nn.functional.batch_norm."""
    return batch_norm_act(input, running_mean, running_var, weight, bias, training, momentum, eps)


def batch_norm_relu(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`batch_norm_act` with activation "relu"."""
    return batch_norm_act(input, running_mean, running_var, weight, bias, training, momentum, eps, "relu")
