# SPDX-License-Identifier: MIT
"""Rules of `swap` that join operators of torch, on the example of each; Sigmoid behind a BatchNorm; activations alone;
squeeze-and-excite, with all rules.

A step of the stock module against that of the swapped one, both of which draw the same numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from opswap._table import short_name
from opswap.bench.case import LAYOUTS, Case, shape_text
from opswap.swap import swap
from opswap.swap.rule import Example, Sized
from opswap.swap.rules import DEFAULT

__all__ = ["cases"]

# torch's avg_pool3d has no kernel for 16 bits, and its GELU is faster there.
_FLOAT32 = ("local_response_norm", "activation GELU tanh")
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1}


def _sigmoid() -> Sized:
    return nn.Sequential(nn.BatchNorm2d(64), nn.Sigmoid()), ((32, 64, 28, 28),)


def _alone(module: nn.Module) -> Sized:
    return module, ((32, 64, 28, 28),)


class _SqueezeExcite(nn.Module):
    """As EfficientNet and MobileNetV3 have it: each channel times a number that follows from the mean of all."""

    def __init__(self, channels: int, reduced: int, activation: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.reduce, self.activation = nn.Conv2d(channels, reduced, 1), activation
        self.expand, self.gate = nn.Conv2d(reduced, channels, 1), gate

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.expand(self.activation(self.reduce(mean))))


def _excited(channels: int, reduced: int, side: int, small: bool) -> Sized:
    functions = (nn.ReLU(), nn.Hardsigmoid()) if small else (nn.SiLU(), nn.Sigmoid())
    return _SqueezeExcite(channels, reduced, *functions), ((32, channels, side, side),)


def _examples() -> dict[str, Example]:
    named = {rule.name: rule.example for rule in DEFAULT if rule.example is not None}
    chosen = ("dropout_add", "shared_activation", "local_response_norm")
    others: dict[str, Example] = {"batch_norm_act Sigmoid": _sigmoid}
    alone = {"activation Mish": nn.Mish(), "activation GELU tanh": nn.GELU(approximate="tanh")}
    others |= {name: partial(_alone, module) for name, module in alone.items()}
    sizes = {"early": (32, 8, 112, False), "middle": (120, 32, 28, True), "late": (1152, 48, 7, False)}
    others |= {f"squeeze_excite {name}": partial(_excited, *size) for name, size in sizes.items()}
    return {name: named[name] for name in chosen} | others


def cases(batch: int) -> Iterator[Case]:
    """Each in both formats; the examples have sizes of their own, of which `batch` is a 32nd part of the images."""
    for name, example in _examples().items():
        module, ((images, *size),) = example()
        shape = (max(1, images * batch // 32), *size)
        for dtype, tolerance in _TOLERANCE.items():
            if name in _FLOAT32 and dtype is not torch.float32:
                continue
            for layout, memory_format in LAYOUTS.items():
                yield Case(
                    name,
                    shape_text(shape),
                    short_name(dtype),
                    "step",
                    partial(_build, module, name.split()[0], shape, dtype, memory_format),
                    {"opswap": layout},
                    0,
                    tolerance,
                    kernels=name.startswith(("activation", "batch_norm", "local")),
                )


def _build(
    module: nn.Module,
    rule: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    memory_format: torch.memory_format,
) -> dict[str, Callable[[], Sequence[Tensor]]]:
    stock = copy.deepcopy(module).train().to(dtype, memory_format=memory_format)
    rules = [r for r in DEFAULT if r.name == rule]
    swapped = swap(copy.deepcopy(stock), rules=rules or DEFAULT, strict=bool(rules))
    x = torch.randn(shape).to(dtype).contiguous(memory_format=memory_format).requires_grad_()
    gradient = torch.randn_like(stock(x))
    return {name: partial(_step, m, x, gradient) for name, m in (("torch", stock), ("opswap", swapped))}


def _step(model: nn.Module, x: Tensor, gradient: Tensor) -> Sequence[Tensor]:
    torch.default_generator.manual_seed(0)
    y = model(x)
    return [y, *torch.autograd.grad(y, [x, *model.parameters()], gradient)]
