# SPDX-License-Identifier: MIT
"""Which of the operators that opswap replaces a network runs: seen by torch's profiler, without asking opswap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch

KINDS = (
    "batch norm",
    "activation after it",
    "pool",
    "dropout",
    "channel shuffle",
    "1x1 convolution",
    "depthwise convolution",
)

_ACTIVATIONS = {
    *(
        "relu",
        "relu6",
        "hardtanh",
        "hardswish",
        "silu",
        "leaky_relu",
        "elu",
        "hardsigmoid",
        "gelu",
        "mish",
        "sigmoid",
    ),
    *("softplus", "clamp", "clamp_min", "clamp_max"),
}
# Adaptive averages are left out: of a whole image, as networks use them, they are one pass in torch too.
_POOLS = {
    *(
        "max_pool2d",
        "max_pool3d",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "avg_pool2d",
        "avg_pool3d",
    ),
    *("adaptive_max_pool2d", "adaptive_max_pool3d"),
}
_DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout"}
_SHUFFLES = {"channel_shuffle", "native_channel_shuffle"}


def count_sites(step: Callable[[], Any]) -> Counter[str]:
    """How often a call runs each of `KINDS` in torch's own code; what opswap runs in their place is not counted.

    Args: step: a forward in training mode. A dropout of probability 0 is not counted. An activation is "behind" a batch
        norm, torch's or opswap's, if no other operator was called between them.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        step()
    # The profiler also lists what an operator calls.
    calls = [event for event in profile.events() if event.cpu_parent is None]
    return _count(sorted(calls, key=lambda event: event.time_range.start))


def _count(calls: Iterable[Any]) -> Counter[str]:
    found: Counter[str] = Counter()
    before = ""
    for call in calls:
        space, _, name = call.name.partition("::")
        name = name.rstrip("_") if space == "aten" else call.name
        kind = _kind(name, call.input_shapes, call.concrete_inputs, before)
        if kind:
            found[kind] += 1
        before = "batch norm" if "BatchNorm" in name else kind
    return found


def _kind(name: str, shapes: list[Any], values: list[Any], before: str) -> str:
    if name == "batch_norm" and len(shapes[0]) == 4:
        return "batch norm"
    if name in _ACTIVATIONS:
        return "activation after it" if before == "batch norm" else ""
    if name in _POOLS:
        return "pool"
    if name in _DROPOUTS:
        return "dropout" if values[1] and values[2] else ""
    if name in _SHUFFLES or (
        name in {"transpose", "swapaxes", "permute"} and _shuffles(name, shapes, values)
    ):
        return "channel shuffle"
    if name in {"conv2d", "convolution"} and len(shapes[1]) == 4:
        return _convolution(shapes[1], int(values[8 if name == "convolution" else 6]))
    return ""


def _shuffles(name: str, shapes: list[Any], values: list[Any]) -> bool:
    """True if groups and channels of a group change places: dimensions 1 and 2 of five."""
    if len(shapes[0]) != 5:
        return False
    if name == "permute":
        return [v % 5 for v in values[1]] == [0, 2, 1, 3, 4]
    return {values[1] % 5, values[2] % 5} == {1, 2}


def _convolution(weight: list[int], groups: int) -> str:
    if weight[1] == 1 and groups > 1:
        return "depthwise convolution" if weight[0] % groups == 0 and max(weight[2:]) > 1 else ""
    return "1x1 convolution" if groups == 1 and weight[2:] == [1, 1] else ""
