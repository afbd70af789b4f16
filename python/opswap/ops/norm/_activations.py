# SPDX-License-Identifier: MIT
"""The activations after a batch normalisation: their names, their parameters, torch's functions, derivatives.

An activation is a text: its name, or its name with all its parameters as in "hardtanh(-2.0, 2.0)".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor

__all__ = ["ACTIVATIONS", "activate", "parse", "slope", "spell"]

# Their parameters, with torch's values if the text gives none.
ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "relu": (),
    "relu6": (),
    "hardswish": (),
    "leaky_relu": (0.01,),
    "hardtanh": (-1.0, 1.0),
    "hardsigmoid": (),
    "sigmoid": (),
    "silu": (),
    "elu": (1.0,),
    "gelu": (),
    "gelu_tanh": (),
    "mish": (),
    "softplus": (1.0, 20.0),
}


def parse(activation: str) -> tuple[str, tuple[float, ...]]:
    """The name and the parameters of an activation.

    Raises: ValueError for a text that is not an activation.
    """
    name, bracket, rest = activation.partition("(")
    if name not in ACTIVATIONS:
        raise ValueError(activation)
    if not bracket:
        return name, ACTIVATIONS[name]
    given = rest.removesuffix(")").split(", ")
    if not rest.endswith(")") or len(given) != len(ACTIVATIONS[name]):
        raise ValueError(activation)
    return name, tuple(float(number) for number in given)


def spell(name: str, *parameters: float) -> str:
    """The text of an activation."""
    return f"{name}({', '.join(repr(float(p)) for p in parameters)})" if parameters else name


_TORCH: dict[str, Callable[..., Tensor]] = {
    "relu": torch_functional.relu,
    "relu6": torch_functional.relu6,
    "hardswish": torch_functional.hardswish,
    "leaky_relu": torch_functional.leaky_relu,
    "hardtanh": torch_functional.hardtanh,
    "hardsigmoid": torch_functional.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "silu": torch_functional.silu,
    "elu": torch_functional.elu,
    "gelu": torch_functional.gelu,
    "gelu_tanh": functools.partial(torch_functional.gelu, approximate="tanh"),
    "mish": torch_functional.mish,
    "softplus": torch_functional.softplus,
}


def activate(input: Tensor, activation: str | None) -> Tensor:
    """torch's own function of `input`."""
    if activation is None:
        return input
    name, parameters = parse(activation)
    return _TORCH[name](input, *parameters)


def _between(z: Tensor, low: float, high: float, inside: Tensor) -> Tensor:
    return inside.masked_fill((z <= low) | (z >= high), 0)


def _hardswish(z: Tensor) -> Tensor:
    return torch.where(z < 3, z / 3 + 0.5, torch.ones_like(z)).masked_fill(z <= -3, 0)


def _hardsigmoid(z: Tensor) -> Tensor:
    return torch.full_like(z, 1 / 6).masked_fill(~((z > -3) & (z < 3)), 0)


def _sigmoid(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * torch.sigmoid(-z)


def _silu(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * (1 + z * torch.sigmoid(-z))


def _elu(z: Tensor, alpha: float) -> Tensor:
    return torch.where(z > 0, torch.ones_like(z), alpha * z.clamp(max=0).exp())


def _gelu(z: Tensor) -> Tensor:
    density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return 0.5 * torch.erfc(-z / math.sqrt(2)) + z * density


def _gelu_tanh(z: Tensor) -> Tensor:
    factor = math.sqrt(8 / math.pi)
    inner = factor * z * (1 + 0.044715 * z * z)
    return torch.sigmoid(inner) * (1 + factor * z * (1 + 3 * 0.044715 * z * z) * torch.sigmoid(-inner))


def _mish(z: Tensor) -> Tensor:
    factor = torch.tanh(torch_functional.softplus(z))
    return factor + z * torch.sigmoid(z) * (1 - factor * factor)


def _softplus(z: Tensor, beta: float, threshold: float) -> Tensor:
    return torch.where(z * beta > threshold, torch.ones_like(z), torch.sigmoid(z * beta))


_SLOPES: dict[str, Callable[..., Any]] = {
    "relu": lambda z: torch.ones_like(z).masked_fill(z <= 0, 0),
    "relu6": lambda z: _between(z, 0, 6, torch.ones_like(z)),
    "hardswish": _hardswish,
    "leaky_relu": lambda z, slope: torch.full_like(z, slope).masked_fill(z > 0, 1),
    "hardtanh": lambda z, low, high: _between(z, low, high, torch.ones_like(z)),
    "hardsigmoid": _hardsigmoid,
    "sigmoid": _sigmoid,
    "silu": _silu,
    "elu": _elu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "mish": _mish,
    "softplus": _softplus,
}


def slope(z: Tensor, activation: str | None) -> Tensor | None:
    """The activation's derivative at z, as torch's backward has it; None for 1."""
    if activation is None:
        return None
    name, parameters = parse(activation)
    return _SLOPES[name](z, *parameters)
