# SPDX-License-Identifier: MIT
"""The directions in which a case calls an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["DIRECTIONS", "Step"]

Step = Callable[[], Any]


def _forward(form: Step, leaves: Sequence[Tensor], gradient: Tensor) -> Step:
    return form


def _inference(form: Step, leaves: Sequence[Tensor], gradient: Tensor) -> Step:
    return torch.no_grad()(form)


def _backward(form: Step, leaves: Sequence[Tensor], gradient: Tensor) -> Step:
    output = form()
    return lambda: torch.autograd.grad(output, leaves, gradient, retain_graph=True)


def _step(form: Step, leaves: Sequence[Tensor], gradient: Tensor) -> Step:
    return lambda: torch.autograd.grad(form(), leaves, gradient)


# run(form, leaves, gradient) is what is timed. A forward records its graph; a backward gives the gradients of the
# leaves, a step is both.
DIRECTIONS = {"forward": _forward, "inference": _inference, "backward": _backward, "step": _step}
