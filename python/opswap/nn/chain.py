# SPDX-License-Identifier: MIT
"""Modules that follow each other, run as one chain of convolutions and normalisations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from opswap import functional as F
from opswap._torch import add_to_each, any_global_hook
from opswap.ops._convolution import taps_of
from opswap.ops._function import plain_eager, without_autocast
from opswap.ops._planes import has_planes
from opswap.ops.chain import PER_STAGE, try_chain, try_folded
from opswap.ops.norm import activate, is_watched
from opswap.ops.reduced_precision import output_dtype, pointwise_or_float32

from .frozen import FROZEN, Parts
from .norm import Norm, NormCall, Pooling, apply_norm, apply_norm_pool

__all__ = ["FoldedLink", "Link", "apply_chain", "apply_folded", "apply_pointwise", "settle", "settled"]

# A convolution, its normalisation, the activation after it.
Link = tuple[nn.Conv2d, Norm, str | None]
FoldedLink = tuple[nn.Conv2d, Norm | None, str | None]

_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_is_autocast = torch.is_autocast_enabled


def _momentum(norm: Norm) -> float:
    """What the next batch counts in the running statistics."""
    if norm.momentum is not None:
        return norm.momentum
    counted = norm.num_batches_tracked
    return 0.0 if counted is None or not norm.track_running_stats else 1.0 / float(counted + 1)


def settled(*modules: nn.Module) -> bool:
    """True if the first convolution is frozen, and nothing of the modules has changed since `settle`."""
    if _compiling():
        return False
    frozen = modules[0].__dict__.get(FROZEN)
    return frozen is not None and not any_global_hook() and frozen.is_settled(modules)


def settle(*modules: nn.Module) -> bool:
    """Let a frozen chain remember its modules, for which every condition holds. Returns: True."""
    if not _compiling():
        frozen = modules[0].__dict__.get(FROZEN)
        if frozen is not None:
            frozen.settle(modules)
    return True


def _drop_frozen(first: nn.Conv2d) -> None:
    """Forget the folded weights of a frozen chain, by its first convolution."""
    frozen = first.__dict__.get(FROZEN)
    if frozen is not None:
        frozen.drop()


def _gather_training(links: Sequence[Link]) -> tuple[list[Any], list[Tensor | None], list[Tensor]] | None:
    """Options, tensors and counters of a chain in training; None if a normalisation is not in training."""
    options, counters = [], []
    tensors: list[Tensor | None] = []
    for convolution, norm, activation in links:
        if not norm.training:
            return None
        options.append((convolution.stride[0], _momentum(norm), norm.eps, activation))
        tensors += (convolution.weight, norm.weight, norm.bias)
        if norm.track_running_stats:
            tensors += (norm.running_mean, norm.running_var)
            if norm.num_batches_tracked is not None:
                counters.append(norm.num_batches_tracked)
        else:
            tensors += (None, None)
    return options, tensors, counters


def _try_training(input: Tensor, links: Sequence[Link]) -> Any:
    """The chain, batches counted; NotImplemented if nothing was done."""
    try:
        parts = _gather_training(links)
    except AttributeError:  # deleted: the call of its module raises, when those before it are done
        return NotImplemented
    if parts is None:
        return NotImplemented
    options, tensors, counters = parts
    moved = [t for t in tensors[3::PER_STAGE] if t is not None]  # means
    if len({*map(id, moved)}) < len(moved) or len({*map(id, counters)}) < len(counters):
        return NotImplemented  # a cumulative average would have to count in between
    _drop_frozen(links[0][0])
    output = None
    try:
        output = try_chain(tuple(options), (input, *tensors))
    finally:  # a checkpoint ends a forward that is run again by an exception, after the statistics have moved
        if output is not NotImplemented and counters:
            add_to_each(counters, 1)
    return output


def _gather(links: Sequence[FoldedLink]) -> Parts | None:
    """What the kernels of evaluation read of a chain; None if a normalisation has no statistics of its own there."""
    options = []
    weights: list[Tensor | None] = []
    for convolution, norm, activation in links:
        eps = 1.0
        statistics: tuple[Tensor | None, ...] = (None, None, None, None)
        if norm is not None:
            if norm.training or norm.running_mean is None:
                return None
            eps = norm.eps
            statistics = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
        padding: Any = convolution.padding  # not a text: see `foldable` and `linked`
        options.append((*convolution.stride, *padding, convolution.groups, eps, activation))
        weights += (convolution.weight, *statistics, convolution.bias)
    return tuple(options), tuple(weights), tuple([convolution.weight for convolution, _, _ in links])


def _pays_for_planes(links: Sequence[FoldedLink]) -> bool:
    """True if a chain in evaluation is faster on contiguous images, which it puts into channels_last and back.

    Measured on an Intel Xeon: two convolutions and more are 1.4 to 2 times as fast as one by one; single ones, and
    those of larger dense windows, for which torch's library is fast on planes too, 0.7 to 0.95 times.
    """
    return len(links) > 1 and all(
        convolution.groups > 1 or taps_of(convolution) == (1, 1) for convolution, *_ in links
    )


def _try_evaluation(input: Tensor, links: Sequence[FoldedLink]) -> Any:
    """The chain with its normalisations folded into the weights; NotImplemented if nothing was done."""
    frozen = links[0][0].__dict__.get(FROZEN)
    if frozen is None or type(links[0][1]) is NormCall:  # whose tensors no seal watches
        parts = _gather(links)
    else:
        parts = frozen.parts(tuple([activation for _, _, activation in links]), lambda: _gather(links))
    if parts is None:
        return NotImplemented
    options, given, alone = parts
    if frozen is not None:
        return frozen.call(options, alone, lambda folded: try_folded(options, (input, *given), folded))
    made = try_folded(options, (input, *given), None)
    return made if made is NotImplemented else made[0]


def _try_cast(chain: Callable[..., Any], input: Tensor, links: Sequence[FoldedLink]) -> Any:
    """`chain`; under autocast to 16 bits that are slow here in float32, rounded once at its end.

    NotImplemented if nothing was done, also for an input that would be converted in vain.
    """
    planar = has_planes(input)
    if planar and chain is _try_evaluation and not _pays_for_planes(links):
        return NotImplemented
    if not _is_autocast("cpu"):
        return chain(input, links)
    if not planar and not input.is_contiguous(memory_format=torch.channels_last):
        return NotImplemented
    dtype = output_dtype((input, *[convolution.weight for convolution, *_ in links]))
    if dtype is None:
        return NotImplemented
    with without_autocast():
        # As the copy that autocast makes, it stays what it is if the input is written to before the backward.
        trains = chain is _try_training and input.dtype is torch.float32
        output = chain(input.clone() if trains else input.float(), links)
        return output if output is NotImplemented else output.to(dtype)


def _apply_parts(input: Tensor, links: Sequence[FoldedLink], pool: Pooling | None = None) -> Tensor:
    """Each convolution, and each normalisation with its activation, for itself; the last one with the pool."""
    if _grad_enabled():
        _drop_frozen(links[0][0])
    for i, (convolution, norm, activation) in enumerate(links, 1):
        input = convolution(input)
        # No other code reads the result of the convolution.
        if norm is not None and pool is not None and i == len(links):
            input = apply_norm_pool(norm, input, activation, pool)
        elif norm is not None:
            alone = not norm.training and not (_grad_enabled() and input.requires_grad)
            input = apply_norm(norm, input, activation, inplace=alone)
        elif activation == "relu":
            input = torch.relu_(input)
        else:
            input = activate(input, activation)
    return input


def apply_chain(input: Tensor, *links: Link) -> Tensor:
    """The forwards of convolutions, normalisations and activations, one after another.

    In training, and in evaluation without a graph, the kernels of `conv_chain` run if they can; else each convolution,
    and each normalisation with its activation, for itself.
    """
    output = NotImplemented
    if plain_eager() or is_watched(input):
        output = _try_cast(_try_training if links[0][1].training else _try_evaluation, input, links)
    return _apply_parts(input, links) if output is NotImplemented else output


def apply_folded(input: Tensor, *links: FoldedLink, pool: Pooling | None = None) -> Tensor:
    """`apply_chain` of convolutions of any window, with bias or without normalisation: kernels in evaluation only.

    Args: pool: a max pool over planes of the result, behind a normalisation.
    """
    if links[0][0].training:
        _drop_frozen(links[0][0])
    output = NotImplemented
    if not (_grad_enabled() and input.requires_grad) and plain_eager():
        output = _try_cast(_try_evaluation, input, links)
    if output is NotImplemented:
        return _apply_parts(input, links, pool)
    return output if pool is None else F.max_pool2d(output, *pool)


def apply_pointwise(convolution: nn.Conv2d, input: Tensor) -> Tensor:
    """The forward of a 1 x 1 convolution by the kernels; a frozen one in evaluation keeps its packed weight."""
    if FROZEN in convolution.__dict__ and not convolution.training and plain_eager():
        options = convolution.stride, convolution.padding
        known = type(options[0]) is tuple and type(options[1]) is tuple
        if known and not (_grad_enabled() and input.requires_grad):
            output = _try_cast(_try_evaluation, input, ((convolution, None, None),))
            if output is not NotImplemented:
                return output
    return pointwise_or_float32(input, convolution.weight, convolution.bias, convolution.stride)
