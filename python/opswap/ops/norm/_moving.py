# SPDX-License-Identifier: MIT
"""Normalisation in training and the move of the running statistics as one operator, for dispatch modes that watch.

In torch's own operators the move alone is ten, each of which a mode sees in Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opswap._torch import dispatch_modes, mode_stack

from .._function import transforms_active
from .._operator import PlainOperator
from ._arguments import check, count_values
from ._operators import fake, run
from ._reference import normalize, update_running

__all__ = ["is_checkpointed", "is_watched", "moving_operator"]


def is_watched(*tensors: Tensor | None) -> bool:
    """True if dispatch modes alone watch, none of them torch's own, and the tensors are ordinary ones."""
    watching = _watching(*tensors)
    return bool(watching) and not any(name.startswith("torch.") for name in watching)


def is_checkpointed(*tensors: Tensor | None) -> bool:
    """True for ordinary tensors in a selective checkpoint.

    It may end a forward that runs again when the last tensor is saved for the backward, before what follows.
    """
    return "torch.utils.checkpoint" in _watching(*tensors)


def _watching(*tensors: Tensor | None) -> list[str]:
    """The Python modules of the dispatch modes, if nothing else watches and the tensors are ordinary ones."""
    if torch.compiler.is_compiling() or transforms_active() or mode_stack is None or not dispatch_modes():
        return []
    return [type(mode).__module__ for mode in mode_stack()] if all(type(t) is Tensor for t in tensors) else []


def _kernel(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *vectors, momentum, eps, activation = arguments
    try:
        return run(True, momentum, eps, activation, input, *vectors)
    except (TypeError, ValueError, RuntimeError):
        check(input, *vectors, True, eps)  # words what the extension refused
        raise


def _reference(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    running_mean, running_var, *parameters, momentum, eps, activation = arguments
    check(input, running_mean, running_var, *parameters, True, eps)
    output, statistics = normalize(input, None, None, *parameters, eps, activation)
    update_running(statistics, running_mean, running_var, momentum, count_values(input))
    return output, statistics


def _fake(input: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    _, _, *parameters, _, eps, activation = arguments
    return fake(input, None, None, *parameters, eps, activation)


moving_operator = PlainOperator(
    "batch_norm_act_moving(Tensor input, Tensor(a!) running_mean, Tensor(b!) running_var, Tensor? weight, "
    "Tensor? bias, float momentum, float eps, str? activation) -> (Tensor, Tensor)",
    _kernel,
    _reference,
    _fake,
)
