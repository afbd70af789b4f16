# SPDX-License-Identifier: MIT
"""A chain with the move of its running statistics, and its backward, as one operator each: for modes that watch.

Without a mode a chain runs beside the dispatcher. The operators let a dispatch mode see what then runs, and not the
parts of a chain, which are several times as many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor

from opswap import _core

from ._function import tracing
from ._operator import PlainOperator
from ._stats import count_kernel, count_reference, reference_forced
from .norm import is_watched
from .norm._moving import moving_operator
from .norm._operators import gradients, operator

__all__ = [
    "PER_STAGE",
    "Options",
    "backward_watched",
    "forward_watched",
    "run_watched",
    "run_watched_backward",
]

_NAME, _NAME_BACKWARD = "conv_chain", "conv_chain_backward"
PER_STAGE = 5  # tensors

Options = tuple[tuple[int, float, float, str | None], ...]  # per stage: stride, momentum, eps, activation


def forward_watched(tensors: Sequence[Tensor | None]) -> bool:
    """True if modes watch a chain of ordinary tensors that the operator takes: every stage has statistics.

    An input in another format is left to the parts, whose operators show where it is converted.
    """
    input = tensors[0]
    running = [t for i, t in enumerate(tensors) if i and i % PER_STAGE in (4, 0)]
    if any(t is None for t in running) or not is_watched(input, *running):
        return False
    if input is None or input.dim() != 4 or input.dtype is not torch.float32:
        return False
    if not input.is_contiguous(memory_format=torch.channels_last):
        return False
    if torch.is_autocast_enabled("cpu") or reference_forced() or tracing():
        return False
    return _core.plain_tensors([t for t in tensors if t is not None])


def backward_watched(grad_output: Tensor) -> bool:
    """The same of a backward that records no graph."""
    if torch.is_grad_enabled() or reference_forced() or not is_watched(grad_output):
        return False
    return _core.plain_tensors((grad_output,))


def run_watched(options: Options, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """As `_core.plain_chain`, through the dispatcher."""
    output, statistics, zs = _forward(*_lists(tensors), *_columns(options))
    return output, statistics, *zs


def run_watched_backward(
    options: Options,
    tensors: tuple[Tensor | None, ...],
    needed: Sequence[bool],
    grad_output: Tensor,
    statistics: Tensor,
    *zs: Tensor,
) -> list[Tensor | None]:
    """The gradients of `tensors`, None for those that are not needed, through the dispatcher."""
    input, weights, affine, _ = _lists(tensors)
    wanted = [n and t is not None for n, t in zip(needed, tensors, strict=True)]
    columns = _columns(options)
    found = iter(_backward(grad_output, input, weights, affine, statistics, list(zs), *columns, wanted))
    return [next(found) if w else None for w in wanted]


def _lists(tensors: Sequence[Any]) -> tuple[Any, list[Any], list[Any], list[Any]]:
    """The input; per stage the weight; those of its normalisation, its bias; its running mean and variance."""
    groups = [tensors[i : i + PER_STAGE] for i in range(1, len(tensors), PER_STAGE)]
    weights, affine, running = ([t for g in groups for t in g[a:b]] for a, b in ((0, 1), (1, 3), (3, 5)))
    return tensors[0], weights, affine, running


def _columns(options: Options) -> tuple[list[int], list[float], list[float], list[str]]:
    strides, momenta, epsilons, activations = zip(*options, strict=True)
    return list(strides), list(momenta), list(epsilons), [a or "" for a in activations]


def _rows(strides: Any, momenta: Any, epsilons: Any, activations: Any) -> Options:
    return tuple(zip(strides, momenta, epsilons, (a or None for a in activations), strict=True))


def _joined(
    input: Tensor, weights: Sequence[Tensor], affine: Sequence[Any], running: Sequence[Any]
) -> tuple[Tensor | None, ...]:
    """The inverse of `_lists`."""
    stages = zip(weights, affine[::2], affine[1::2], running[::2], running[1::2], strict=True)
    return (input, *(t for stage in stages for t in stage))


def _convolution(weight: Tensor, stride: int) -> dict[str, Any]:
    side = weight.shape[2]
    return {
        "stride": [stride] * 2,
        "padding": [side // 2] * 2,
        "dilation": [1, 1],
        "groups": weight.shape[0] if side > 1 else 1,
    }


def _kernel(
    input: Tensor, weights: list[Tensor], affine: list[Tensor | None], running: list[Tensor], *columns: Any
) -> tuple[Tensor, Tensor, list[Tensor]]:
    made = _core.plain_chain(_rows(*columns), _joined(input, weights, affine, running))
    if made is NotImplemented:
        count_reference(_NAME)
        return _reference(input, weights, affine, running, *columns)
    count_kernel(_NAME)
    return made[0], made[1], list(made[2:])


def _reference(
    input: Tensor, weights: list[Tensor], affine: list[Tensor | None], running: list[Tensor], *columns: Any
) -> tuple[Tensor, Tensor, list[Tensor]]:
    options = _rows(*columns)
    zs, statistics = [], []
    for i, (stride, momentum, eps, activation) in enumerate(options):
        zs.append(torch_functional.conv2d(input, weights[i], **_convolution(weights[i], stride)))
        vectors = *running[2 * i : 2 * i + 2], *affine[2 * i : 2 * i + 2]
        input, used = moving_operator(zs[-1], *vectors, momentum, eps, activation)
        statistics.append(used.flatten())
    return input, torch.cat(statistics), zs


def _fake(
    input: Tensor, weights: list[Tensor], affine: list[Tensor | None], running: list[Tensor], *columns: Any
) -> tuple[Tensor, Tensor, list[Tensor]]:
    zs = []
    for weight, stride in zip(weights, columns[0], strict=True):
        source = zs[-1] if zs else input
        zs.append(torch_functional.conv2d(source, weight, **_convolution(weight, stride)))
    count = 2 * sum(weight.shape[0] for weight in weights)
    return torch.empty_like(zs[-1]), input.new_empty(count, dtype=torch.float64), zs


def _kernel_backward(grad_output: Tensor, input: Tensor, weights: list[Tensor], *others: Any) -> list[Tensor]:
    affine, statistics, zs, *columns, needed = others
    tensors = _joined(input, weights, affine, [None] * (2 * len(weights)))
    grad = grad_output.contiguous(memory_format=torch.channels_last)
    made = _core.plain_chain_backward(_rows(*columns), tensors, grad, statistics, tuple(zs), tuple(needed))
    if made is NotImplemented:
        count_reference(_NAME_BACKWARD)
        return _reference_backward(grad_output, input, weights, *others)
    count_kernel(_NAME_BACKWARD)
    return [t for t in made if t is not None]


def _reference_backward(
    grad_output: Tensor, input: Tensor, weights: list[Tensor], *others: Any
) -> list[Tensor]:
    affine, statistics, zs, *columns, needed = others
    tensors = _joined(input, weights, affine, [None] * (2 * len(weights)))
    found = list(_from_the_end(_rows(*columns), tensors, statistics, zs, grad_output))
    return [g for g, n in zip(reversed(found), needed, strict=True) if n]


def _from_the_end(
    options: Options,
    tensors: Sequence[Tensor | None],
    statistics: Tensor,
    zs: Sequence[Tensor],
    grad: Tensor,
) -> Iterator[Tensor | None]:
    """The gradients of the tensors by the operators of the parts, the last one first."""
    input, weights, affine, _ = _lists(tensors)
    of_stages = statistics.split([2 * z.shape[1] for z in zs])
    for i in reversed(range(len(zs))):
        stride, _, eps, activation = options[i]
        vectors = affine[2 * i : 2 * i + 2]
        used = of_stages[i].view(2, -1)
        needed = (True, *(v is not None for v in vectors))
        grad_z, *of_vectors = gradients((zs[i], used, *vectors), (True, eps, activation), needed, grad)
        source = input
        if i:
            _, _, before, act = options[i - 1]
            source = operator(zs[i - 1], None, None, *affine[2 * i - 2 : 2 * i], before, act)[0]
        settings = _convolution(weights[i], stride)
        grad, of_weight, _ = torch.ops.aten.convolution_backward(
            grad_z,
            source,
            weights[i],
            None,
            settings["stride"],
            settings["padding"],
            settings["dilation"],
            False,
            [0, 0],
            settings["groups"],
            [True, True, False],
        )
        yield from (None, None, of_vectors[1], of_vectors[0], of_weight)
    yield grad


def _fake_backward(
    grad_output: Tensor, input: Tensor, weights: list[Tensor], affine: list[Tensor | None], *rest: Any
) -> list[Tensor]:
    tensors = _joined(input, weights, affine, [None] * (2 * len(weights)))
    return [torch.empty_like(t) for t, n in zip(tensors, rest[-1], strict=True) if n and t is not None]


_OPTIONS = "int[] strides, float[] momenta, float[] epsilons, str[] activations"
_forward = PlainOperator(
    f"{_NAME}_moving(Tensor input, Tensor[] weights, Tensor?[] affine, Tensor(a!)[] running, {_OPTIONS}) -> "
    "(Tensor, Tensor, Tensor[])",
    _kernel,
    _reference,
    _fake,
)
_backward = PlainOperator(
    f"{_NAME_BACKWARD}(Tensor grad_output, Tensor input, Tensor[] weights, Tensor?[] affine, Tensor statistics, "
    f"Tensor[] zs, {_OPTIONS}, bool[] needed) -> Tensor[]",
    _kernel_backward,
    _reference_backward,
    _fake_backward,
)
