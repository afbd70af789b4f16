# SPDX-License-Identifier: MIT
"""Which of the operators that opswap replaces a network runs: seen by torch's profiler and in autograd's graph, without
asking opswap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

KINDS = (
    "batch norm",
    "activation after it",
    "pool",
    "dropout",
    "channel shuffle",
    "1x1 convolution",
    "depthwise convolution",
)

# Nodes of autograd's graph, without the number behind their names.
_ACTIVATIONS = {
    *("Relu", "Hardtanh", "Hardswish", "Silu", "LeakyRelu", "Elu", "Hardsigmoid", "Gelu", "Mish", "Sigmoid"),
    *("Softplus", "Clamp", "ClampMin", "ClampMax"),
}
# torch's, opswap's, and a chain of opswap's, which may end with one; both may hold the activation after it.
_NORMS = ("BatchNorm", "Chain")
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

    Args: step: a forward in training mode, which returns what a loss is computed from. A dropout of probability 0 does
        not count. An activation counts if it reads the result of a batch norm, torch's or opswap's, as autograd's graph
        shows.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        result = step()
    found = Counter({"activation after it": sum(map(_follows_norm, _graph_of(result)))})
    # The profiler also lists what an operator calls.
    calls = (event for event in profile.events() if event.cpu_parent is None)
    kinds = (_kind(call.name, call.input_shapes, call.concrete_inputs) for call in calls)
    found.update(kind for kind in kinds if kind)
    return +found


def _graph_of(result: Any) -> set[Any]:
    """The nodes of autograd's graph behind the tensors of a result."""
    stack = [t.grad_fn for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    found: set[Any] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [before for before, _ in node.next_functions if before is not None]
    return found


def _follows_norm(node: Any) -> bool:
    name, _, number = node.name().partition("Backward")
    if name not in _ACTIVATIONS or not number.isdigit() or len(node._input_metadata[0].shape) != 4:
        return False
    before = node.next_functions[0][0]
    return (
        before is not None
        and any(norm in before.name() for norm in _NORMS)
        and not _ends_with_activation(before)
    )


def _ends_with_activation(node: Any) -> bool:
    """True for a normalisation of opswap's, or a chain of them, whose result an activation has gone through."""
    if "Chain" in node.name():
        return getattr(node, "options", ((None,),))[-1][-1] is not None
    return getattr(node, "activation", None) is not None


def _kind(name: str, shapes: list[Any], values: list[Any]) -> str:
    space, _, name = name.partition("::")
    name = name.rstrip("_") if space == "aten" else ""
    if name == "batch_norm" and len(shapes[0]) == 4:
        return "batch norm"
    if name in _POOLS:
        return "pool"
    if name in _DROPOUTS:
        return "dropout" if values[1] and values[2] else ""
    if name in _SHUFFLES or (
        name in {"transpose", "swapaxes", "permute"} and _shuffles(name, shapes, values)
    ):
        return "channel shuffle"
    if name in {"conv2d", "convolution"} and len(shapes[1]) == 4:
        return convolution_kind(shapes[1], int(values[8 if name == "convolution" else 6]))
    return ""


def _shuffles(name: str, shapes: list[Any], values: list[Any]) -> bool:
    """True if groups and channels of a group change places: dimensions 1 and 2 of five."""
    if len(shapes[0]) != 5:
        return False
    if name == "permute":
        return [v % 5 for v in values[1]] == [0, 2, 1, 3, 4]
    return {values[1] % 5, values[2] % 5} == {1, 2}


def convolution_kind(weight: list[int], groups: int) -> str:
    """The kind of a convolution with a weight of this size, "" if it is another one."""
    if weight[1] == 1 and groups > 1:
        return "depthwise convolution" if weight[0] % groups == 0 and max(weight[2:]) > 1 else ""
    return "1x1 convolution" if groups == 1 and weight[2:] == [1, 1] else ""
