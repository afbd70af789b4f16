# SPDX-License-Identifier: MIT
"""Chains of convolution, BatchNorm and activation: ShuffleNetV2's branches, and a block of MobileNetV2.

"conv_chain" is compared with torch's operators, "conv_chain, parts" with opswap's own, called one by one. A backward
gives the gradients of the input and of all parameters; a "step" is forward and backward. The gradients of the weights
of convolutions are compared: that of a bias which another normalisation follows is only rounding error.
"inference" has the running statistics and no graph, for one image too; "conv_chain, frozen" keeps the folded weights,
as `opswap.freeze` does. Contiguous images (NCHW) go into channels_last and back. "conv_folded" is a dense convolution,
its BatchNorm and ReLU, in evaluation: shapes of LPRNet, stems, and ResNet's windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as T
from torch import Tensor

from opswap import functional as F
from opswap.bench.case import Case, shape_text
from opswap.ops.chain import MOST_WEIGHTS, Stage, folded_arguments, try_folded

from .calls import DIRECTIONS, Step

__all__ = ["cases"]

Plan = tuple[tuple[int, int, int, str | None], ...]  # per stage: outputs, side, stride, activation
Pair = tuple[int, int]

_DIRECTIONS = ("forward", "backward", "step")
_FORMATS = {"NHWC": torch.channels_last, "NCHW": torch.contiguous_format}
# Of the largest value: a value at the kink of an activation may fall on either side.
_TOLERANCE = 2e-2


def _branch(channels: int, stride: int) -> Plan:
    return (channels, 1, 1, "relu"), (channels, 3, stride, None), (channels, 1, 1, "relu")


# Name, channels and side of the input, stages.
_CHAINS: tuple[tuple[str, int, int, Plan], ...] = (
    ("branch 24 > 58 s2", 24, 56, _branch(58, 2)),
    ("short 24 > 58 s2", 24, 56, ((24, 3, 2, None), (58, 1, 1, "relu"))),
    ("branch 58", 58, 28, _branch(58, 1)),
    ("branch 116 s2", 116, 28, _branch(116, 2)),
    ("short 116 s2", 116, 28, ((116, 3, 2, None), (116, 1, 1, "relu"))),
    ("branch 116", 116, 14, _branch(116, 1)),
    ("branch 232 s2", 232, 14, _branch(232, 2)),
    ("branch 232", 232, 7, _branch(232, 1)),
    ("inverted 24 > 144 > 24", 24, 28, ((144, 1, 1, "relu6"), (144, 3, 1, "relu6"), (24, 1, 1, None))),
)

# Name, channels and size of the input, outputs, window, stride, padding.
_DENSE: tuple[tuple[str, int, Pair, int, Pair, int, Pair], ...] = (
    ("3x3 3 > 64", 3, (24, 94), 64, (3, 3), 1, (0, 0)),
    ("3x1 32", 32, (20, 90), 32, (3, 1), 1, (1, 0)),
    ("1x3 32", 32, (20, 90), 32, (1, 3), 1, (0, 1)),
    ("3x1 64", 64, (18, 44), 64, (3, 1), 1, (1, 0)),
    ("1x3 64", 64, (18, 44), 64, (1, 3), 1, (0, 1)),
    ("1x4 64 > 256", 64, (16, 21), 256, (1, 4), 1, (0, 0)),
    ("13x1 256 > 68", 256, (16, 18), 68, (13, 1), 1, (0, 0)),
    ("1x1 256 > 64", 256, (18, 44), 64, (1, 1), 1, (0, 0)),
    ("1x1 464 > 1024", 464, (7, 7), 1024, (1, 1), 1, (0, 0)),
    ("stem 3 > 24 s2", 3, (224, 224), 24, (3, 3), 2, (1, 1)),
    ("stem 3 > 64 7x7 s2", 3, (224, 224), 64, (7, 7), 2, (3, 3)),
    ("3x3 32", 32, (56, 56), 32, (3, 3), 1, (1, 1)),
    ("3x3 48 > 96 s2", 48, (28, 28), 96, (3, 3), 2, (1, 1)),
)


def cases(batch: int) -> Iterator[Case]:
    """Every chain in float32; every other one in the contiguous format too."""
    for chain in _CHAINS:
        yield from _in_format(batch, chain, "NHWC")
    for chain in _CHAINS[::2]:
        yield from _in_format(batch, chain, "NCHW")
    yield from _dense(batch)


def _in_format(batch: int, chain: tuple[str, int, int, Plan], layout: str) -> Iterator[Case]:
    name, channels, side, plan = chain
    shape = (batch, channels, side, side)
    text = f"{shape_text(shape)} {name}"
    forms = [("conv_chain", "torch"), ("conv_chain, parts", "parts")]
    for direction in _DIRECTIONS:
        for case, other in forms:
            build = partial(_build, shape, plan, direction, other, layout)
            yield Case(case, text, "float32", direction, build, {"opswap": layout}, tolerance=_TOLERANCE)
    if layout == "NHWC":
        forms.append(("conv_chain, frozen", "torch"))
    for images in sorted({batch, 1}, reverse=True):
        text = f"{images},{shape_text(shape[1:])} {name}"
        for case, other in forms:
            build = partial(_inference, (images, *shape[1:]), plan, other, case.endswith("frozen"), layout)
            yield Case(case, text, "float32", "inference", build, {"opswap": layout}, tolerance=_TOLERANCE)


def _dense(batch: int) -> Iterator[Case]:
    for name, channels, size, *window in _DENSE:
        for images in sorted({batch, 1}, reverse=True):
            shape = (images, channels, *size)
            text = f"{shape_text(shape)} {name}"
            large = channels * window[0] * math.prod(window[1]) > MOST_WEIGHTS
            for case in (
                ("conv_folded, frozen",) if large and images == 1 else ("conv_folded", "conv_folded, frozen")
            ):
                build = partial(_folded, shape, *window, case.endswith("frozen"))
                yield Case(
                    case, text, "float32", "inference", build, {"opswap": "NHWC"}, tolerance=_TOLERANCE
                )


def _stages(channels: int, plan: Plan) -> list[Stage]:
    stages = []
    for outputs, side, stride, activation in plan:
        size = (outputs, 1 if side > 1 else channels, side, side)
        weight = (torch.randn(size) / torch.Size(size[1:]).numel() ** 0.5).requires_grad_()
        scale, shift = torch.ones(outputs).requires_grad_(), torch.zeros(outputs).requires_grad_()
        running = torch.zeros(outputs), torch.ones(outputs)
        stages.append(Stage(weight, scale, shift, *running, activation, stride))
        channels = outputs
    return stages


def _one_by_one(x: Tensor, stages: list[Stage], ours: bool, training: bool = True) -> Tensor:
    for s in stages:
        side = s.weight.shape[-1]
        if not ours:
            x = T.conv2d(x, s.weight, None, s.stride, side // 2, 1, s.weight.shape[0] if side > 1 else 1)
            x = T.batch_norm(x, s.running_mean, s.running_var, s.norm_weight, s.norm_bias, training)
            x = {"relu": T.relu_, "relu6": partial(T.relu6, inplace=True), None: lambda y: y}[s.activation](x)
            continue
        if side == 1:
            x = F.pointwise_conv2d(x, s.weight)
        elif x.is_contiguous(memory_format=torch.channels_last):
            x = F.depthwise_conv2d(x, s.weight, None, s.stride, side // 2)
        else:  # as opswap does with large planes
            x = T.conv2d(x, s.weight, None, s.stride, side // 2, 1, s.weight.shape[0])
        vectors = (s.running_mean, s.running_var, s.norm_weight, s.norm_bias)
        x = F.batch_norm_act(x, *vectors, training, activation=s.activation)
    return x


def _inference(shape: tuple[int, ...], plan: Plan, other: str, frozen: bool, layout: str) -> dict[str, Step]:
    x = torch.randn(shape).contiguous(memory_format=_FORMATS[layout])
    stages = _stages(shape[1], plan)
    options, tensors = folded_arguments(x, stages)
    with torch.no_grad():
        folded = try_folded(options, tensors, None)[1] if frozen else None

    @torch.no_grad()
    def theirs() -> tuple[Tensor, ...]:
        return (_one_by_one(x, stages, other == "parts", training=False),)

    @torch.no_grad()
    def ours() -> tuple[Tensor, ...]:
        if frozen:
            return (try_folded(options, tensors, folded)[0],)
        return (F.conv_chain(x, stages, training=False),)

    return {other: theirs, "opswap": ours}


def _build(shape: tuple[int, ...], plan: Plan, direction: str, other: str, layout: str) -> dict[str, Step]:
    x = torch.randn(shape).contiguous(memory_format=_FORMATS[layout]).requires_grad_()
    stages = _stages(shape[1], plan)
    leaves = [x, *(t for s in stages for t in (s.weight, s.norm_weight, s.norm_bias) if t is not None)]
    forms = {
        other: lambda: _one_by_one(x, stages, other == "parts"),
        "opswap": lambda: F.conv_chain(x, stages),
    }
    gradient = torch.randn_like(forms["opswap"]()).contiguous(memory_format=_FORMATS[layout])

    runs = {name: DIRECTIONS[direction](form, leaves, gradient) for name, form in forms.items()}
    return runs if direction == "forward" else {name: _of_weights(run) for name, run in runs.items()}


def _of_weights(run: Step) -> Step:
    return lambda: run()[1::3]


def _folded(
    shape: tuple[int, ...], outputs: int, kernel: Pair, stride: int, padding: Pair, frozen: bool
) -> dict[str, Step]:
    x = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(outputs, shape[1], *kernel) / (shape[1] * kernel[0] * kernel[1]) ** 0.5
    weight = weight.contiguous(memory_format=torch.channels_last)
    norm = torch.rand(outputs) + 0.5, torch.randn(outputs)
    running = torch.randn(outputs), torch.rand(outputs) + 0.5
    options = ((stride, stride, *padding, 1, 1e-5, "relu"),)
    tensors = (x, weight, *norm, *running, None)
    with torch.no_grad():
        folded = try_folded(options, tensors, True)[1] if frozen else None

    @torch.no_grad()
    def theirs() -> tuple[Tensor, ...]:
        y = T.conv2d(x, weight, None, stride, padding)
        return (T.relu_(T.batch_norm(y, *running, *norm)),)

    @torch.no_grad()
    def ours() -> tuple[Tensor, ...]:
        return (try_folded(options, tensors, folded)[0],)

    return {"torch": theirs, "opswap": ours}
