# SPDX-License-Identifier: MIT
"""Chains for the tests: their tensors, the operators that they are made of, and a step of either."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as T
from torch import Tensor

import opswap
from opswap.ops.chain import Stage, conv_chain

LAST = torch.channels_last
ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "relu": T.relu,
    "relu6": T.relu6,
    "hardtanh(-1.0, 2.0)": lambda x: T.hardtanh(x, -1.0, 2.0),
    "hardswish": T.hardswish,
}
NAMES = tuple(ACTIVATIONS)


class Part(NamedTuple):
    """A stage of a chain: outputs, or, of a depthwise convolution, its side; stride; activation."""

    outputs: int = 0
    side: int = 1
    stride: int = 1
    activation: str | None = "relu"


def image(*size: int) -> Tensor:
    """In channels_last whatever the size."""
    n, c, h, w = size
    return torch.randn(n, h, w, c).permute(0, 3, 1, 2)


def make(size: Sequence[int], parts: Sequence[Part]) -> tuple[Tensor, list[Stage]]:
    """The input and stages with all tensors, which ask for gradients."""
    channels, stages = size[1], []
    for part in parts:
        outputs = part.outputs if part.side == 1 else channels
        inside = channels if part.side == 1 else 1
        scale = 1 / math.sqrt(inside * part.side**2)
        stages.append(
            Stage(
                (torch.randn(outputs, inside, part.side, part.side) * scale).requires_grad_(),
                (torch.rand(outputs) + 0.5).requires_grad_(),
                torch.randn(outputs).requires_grad_(),
                torch.randn(outputs),
                torch.rand(outputs) + 0.5,
                part.activation,
                part.stride,
            )
        )
        channels = outputs
    return image(*size).requires_grad_(), stages


def stock(x: Tensor, stages: Sequence[Stage]) -> Tensor:
    """torch's operators, one by one."""
    for s in stages:
        side = s.weight.shape[-1]
        groups = s.weight.shape[0] if side > 1 else 1
        x = T.conv2d(x, s.weight, None, s.stride, side // 2, 1, groups)
        x = T.batch_norm(
            x, s.running_mean, s.running_var, s.norm_weight, s.norm_bias, True, s.momentum, s.eps
        )
        x = ACTIVATIONS[s.activation](x)
    return x


def copy_of(x: Tensor, stages: Sequence[Stage], dtype: torch.dtype) -> tuple[Tensor, list[Stage]]:
    """With tensors of their own, of the same strides."""

    def own(t: object) -> object:
        if not isinstance(t, Tensor):
            return t
        made = torch.empty_strided(t.shape, t.stride(), dtype=dtype).copy_(t.detach())
        return made.requires_grad_(t.requires_grad)

    return own(x), [Stage(*map(own, s)) for s in stages]  # type: ignore[return-value,arg-type]


def step(
    function: Callable[[Tensor, Sequence[Stage]], Tensor], x: Tensor, stages: Sequence[Stage], grad: Tensor
) -> dict[str, Tensor | None]:
    """Output, gradients and running statistics."""
    y = function(x, stages)
    leaves = {"input": x} | {
        f"{field} {i}": t for i, s in enumerate(stages) for field, t in s._asdict().items()
    }
    tensors = {name: t for name, t in leaves.items() if isinstance(t, Tensor)}
    wanted = {name: t for name, t in tensors.items() if t.requires_grad}
    found: dict[str, Tensor | None] = {"output": y.detach()}
    if wanted:
        gradients = torch.autograd.grad(y, list(wanted.values()), grad.to(y.dtype))
        found |= {f"gradient of {name}": g for name, g in zip(wanted, gradients, strict=True)}
    return found | {name: t.detach() for name, t in tensors.items() if "running" in name}


def three_steps(
    x: Tensor, stages: Sequence[Stage], kernels: bool = True
) -> tuple[dict[str, Tensor | None], ...]:
    """A step by stock in float64, by stock, and by ours, which must have, or have not, run the kernels."""
    copies = [copy_of(x, stages, dtype) for dtype in (torch.float64, torch.float32, torch.float32)]
    with torch.no_grad():
        shape = stock(*copy_of(x, stages, torch.float32)).shape
    grad = image(*shape)
    before = opswap.stats()
    found = [step(f, *c, grad) for f, c in zip((stock, stock, conv_chain), copies, strict=True)]
    after = opswap.stats()
    gradients = any(name.startswith("gradient") for name in found[2])
    kind, names = "kernel", ["conv_chain", *(["conv_chain_backward"] if gradients else [])]
    if not kernels:
        kind, names = "reference", ["conv_chain"]  # whose parts have their own gradients
    for name in names:
        assert after[kind].get(name, 0) == before[kind].get(name, 0) + 1, (name, after)
    return tuple(found)
