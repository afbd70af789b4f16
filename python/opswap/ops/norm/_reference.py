# SPDX-License-Identifier: MIT
"""Batch normalisation and its derivatives in plain torch code: the fallback, and the oracle of the tests."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as torch_functional
from torch import Tensor

__all__ = ["reference"]

_ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch_functional.relu,
    "relu6": torch_functional.relu6,
    "hardswish": torch_functional.hardswish,
}


def reference(
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
    """torch's own batch_norm and activation, one after the other.

    Args, returns and raises: as `batch_norm_act`.
    """
    output = torch_functional.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )
    return output if activation is None else _ACTIVATE[activation](output)
