# SPDX-License-Identifier: MIT
"""Convolutions, each with a batch normalisation and an activation, as one operator.

In evaluation the normalisations are folded into the weights, and a few rows of an image go through all convolutions
before the next ones. In training nothing normalised is written to memory between two convolutions: the kernels
normalise a few pixels at a time in the caches, on the way into the next convolution. The backward keeps the input and
what the convolutions computed, and finds the normalised values again.

Source: Ioffe and Szegedy 2015, Batch Normalization, algorithm 1 and section 3; Chan, Golub and LeVeque 1983 for the
variance of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as torch_functional
from torch import Tensor
from torch.autograd import Function
from torch.overrides import handle_torch_function, has_torch_function

from opswap import _core
from opswap._torch import dispatch_modes

from ._chain_operator import (
    PER_STAGE,
    Options,
    backward_watched,
    forward_watched,
    run_watched,
    run_watched_backward,
)
from ._function import (
    DeclinedError,
    base_apply,
    concrete_size,
    needs_graph,
    plain_cpu,
    plain_eager,
    without_autocast,
    without_subclasses,
)
from ._layout import suggest_memory_format
from ._planes import has_planes, to_pixels, to_planes
from ._stats import count_kernel, count_reference
from .norm import batch_norm_act, check_activation

__all__ = [
    "FEWEST_CHANNELS",
    "MOST_CHANNELS",
    "MOST_FOLDED",
    "MOST_STAGES",
    "MOST_WEIGHTS",
    "PER_STAGE",
    "Stage",
    "chain_wins",
    "conv2d_batch_norm_act",
    "conv_chain",
    "folded_arguments",
    "try_chain",
    "try_folded",
]

_compiling = torch.compiler.is_dynamo_compiling
_NAME = "conv_chain"
_NAME_BACKWARD = f"{_NAME}_backward"
FEWEST_CHANNELS, MOST_CHANNELS = 16, 1024
MOST_STAGES = 8
MOST_WEIGHTS = 1 << 17  # of a 1 x 1 convolution, in training
MOST_FOLDED = 1 << 19  # in evaluation, of a dense one too

# Per stage stride_y, stride_x, padding_y, padding_x, groups, eps, activation.
FoldedOptions = tuple[tuple[int, int, int, int, int, float, str | None], ...]


class Stage(NamedTuple):
    """A convolution without bias, the batch normalisation of its output, and the activation after that.

    weight: (O, C, 1, 1), or (C, 1, 3, 3) or (C, 1, 5, 5) for a depthwise convolution, with padding 1 or 2.
    norm_weight, norm_bias: (O), or None. running_mean, running_var: (O), both moved in place by `momentum` towards
    the batch's mean and unbiased variance, or both None. activation: as `batch_norm_act` takes it; the kernels take
    None, "relu", "relu6", "hardtanh(a, b)" and "hardswish". stride: 1, or 2 for a depthwise convolution.
    """

    weight: Tensor
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    running_mean: Tensor | None = None
    running_var: Tensor | None = None
    activation: str | None = None
    stride: int = 1
    momentum: float = 0.1
    eps: float = 1e-5


def _in_planes(tensors: Sequence[Any], fits: Callable[[], Any]) -> bool:
    """True for contiguous images, which a chain puts into channels_last and back, if all else `fits` the kernels."""
    return has_planes(tensors[0]) and fits() is True


def _as_parts(images: Tensor, weights: Sequence[Tensor | None], normed: bool) -> Tensor:
    """The output for contiguous images, or their gradient, in the format that convolutions by these weights give it.

    normed: whether a normalisation comes last, whose output of one pixel is contiguous in any case.
    """
    if not (normed and images.shape[2:] == (1, 1)) and any(
        w is not None and suggest_memory_format(w) is torch.channels_last for w in weights
    ):
        return images
    return to_planes(images)


def _run(options: Options, tensors: tuple[Tensor | None, ...]) -> Any:
    """`_core.plain_chain`, of contiguous images too."""
    if not _in_planes(tensors, lambda: _core.chain_fits(options, tensors)):
        return _core.plain_chain(options, tensors)
    input, *parameters = tensors
    made = _core.plain_chain(options, (to_pixels(input), *parameters))
    if made is NotImplemented:
        return made
    output, *kept = made
    return (_as_parts(output, parameters[::PER_STAGE], True), *kept)


class ConvChain(Function):
    """For calls that only autograd records, or modes that see a chain as one operator."""

    @staticmethod
    def forward(ctx: Any, options: Options, *tensors: Tensor | None) -> Tensor:
        made = (run_watched if dispatch_modes() else _run)(options, tensors)
        if made is NotImplemented:
            raise DeclinedError
        output, *kept = made
        parameters: list[Tensor | None] = list(tensors)
        for running in (4, 5):  # the statistics, which move
            parameters[running::PER_STAGE] = [None] * len(options)
        ctx.options, ctx.count = options, len(tensors)
        ctx.save_for_backward(*parameters, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: a checkpoint unpacks no tensor twice
        tensors, kept = saved[: ctx.count], saved[ctx.count :]
        with without_autocast():  # as the forward
            return None, *_gradients(ctx.options, tensors, ctx.needs_input_grad[1:], grad_output, kept)


_apply = base_apply(ConvChain)


def _gradients(
    options: Options,
    tensors: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    grad_output: Tensor,
    kept: Sequence[Tensor],
) -> Sequence[Tensor | None]:
    arguments = (options, tensors, needed, grad_output)
    if plain_eager() and not torch.is_grad_enabled():
        gradients = _kernel_backward(*arguments, *kept)
        if gradients is not NotImplemented:
            count_kernel(_NAME_BACKWARD)
            return gradients
    elif not has_planes(tensors[0]) and backward_watched(grad_output):
        return run_watched_backward(*arguments, *kept)
    count_reference(_NAME_BACKWARD)
    return _reference_backward(*arguments)


def _kernel_backward(
    options: Options,
    tensors: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
    grad_output: Tensor,
    statistics: Tensor,
    *zs: Tensor,
) -> Any:
    if not plain_cpu((grad_output,)):
        return NotImplemented
    grad_output = to_pixels(grad_output)
    planar = has_planes(tensors[0])
    if planar:
        tensors = (to_pixels(tensors[0]), *tensors[1:])
    made = _core.plain_chain_backward(options, tensors, grad_output, statistics, zs, needed)
    if made is NotImplemented or made[0] is None or not planar:
        return made
    grad_input, *others = made
    return (_as_parts(grad_input, tensors[1:2], False), *others)


def _reference(options: Options, input: Tensor, *parameters: Tensor | None, training: bool = True) -> Tensor:
    """The same by the operators that a chain is made of; running statistics that are None do not move."""
    for i, (stride, momentum, eps, activation) in enumerate(options):
        weight, *vectors, mean, var = parameters[PER_STAGE * i : PER_STAGE * (i + 1)]
        outputs, *_, side = concrete_size(weight) if isinstance(weight, Tensor) else (1, 1)
        groups = outputs if side > 1 else 1
        input = torch_functional.conv2d(input, weight, None, stride, side // 2, 1, groups)
        input = batch_norm_act(input, mean, var, *vectors, training, momentum, eps, activation)
    return input


def _reference_backward(
    options: Options, tensors: tuple[Tensor | None, ...], needed: Sequence[bool], grad_output: Tensor
) -> list[Tensor | None]:
    """Computed again; differentiable where a graph is wanted."""
    graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Apart from each other: a tensor may be given twice, or be made of another one.
        tensors = tuple(
            t if t is None else t.view_as(t) if graph else t.detach().requires_grad_(n)
            for t, n in zip(tensors, needed, strict=True)
        )
        output = _reference(options, *tensors)
        wanted = [t for t, n in zip(tensors, needed, strict=True) if n and t is not None]
        found = iter(torch.autograd.grad(output, wanted, grad_output, create_graph=graph))
    return [next(found) if n and t is not None else None for t, n in zip(tensors, needed, strict=True)]


def chain_wins() -> bool:
    """True on the tiers on which the kernels are faster than the parts of a chain."""
    return _core.chain_leads()


def _trains_bias_alone(tensors: Sequence[Tensor | None]) -> bool:
    """True if a normalisation trains its bias and not its weight.

    The backward of a chain reads every bias, so that autograd lets nobody change it before. Torch's batch norm keeps
    its weight alone: such a bias may change there, and the parts of the chain allow that too.
    """
    for weight, bias in zip(tensors[2::PER_STAGE], tensors[3::PER_STAGE], strict=True):
        if bias is not None and bias.requires_grad and not (weight is not None and weight.requires_grad):
            return True
    return False


def _from_inference(tensors: Sequence[Tensor | None]) -> bool:
    """True for tensors of inference mode, which autograd does not save."""
    return any([t.is_inference() for t in tensors if t is not None])  # noqa: C419, a list is faster


def try_chain(options: Options, tensors: tuple[Tensor | None, ...]) -> Any:
    """The kernels for an ordinary call, running statistics moved; NotImplemented if nothing was done.

    Args: tensors: the input, then per stage weight, norm_weight, norm_bias, running_mean, running_var.
    """
    if not plain_eager():
        return NotImplemented if _compiling() else _try_watched(options, tensors)
    if not chain_wins() or _trains_bias_alone(tensors):
        return NotImplemented
    try:
        if needs_graph(tensors):
            if _from_inference(tensors):
                return NotImplemented  # torch's error comes before running statistics move
            output = _apply(options, *tensors)
        else:
            made = _run(options, tensors)
            if made is NotImplemented:
                return made
            output = made[0]
    except DeclinedError:
        return NotImplemented
    count_kernel(_NAME)
    return output


def try_folded(
    options: FoldedOptions, tensors: tuple[Tensor | None, ...], folded: Tensor | bool | None
) -> Any:
    """The kernels for an ordinary call in evaluation without a graph; NotImplemented if nothing was done.

    Here convolutions may be dense, of any window, and have a bias, and need no normalisation.

    Args:
        options: per stage both strides and paddings and the groups of the convolution, eps, activation.
        tensors: the input, then per stage weight, norm_weight, norm_bias, running_mean, running_var, bias of the
            convolution.
        folded: what an earlier call with the same weights returned; True if what this one returns will be given to
            others; None for one call alone.
    Returns: (output, folded weights).
    """
    if not plain_eager() or not chain_wins() or needs_graph(tensors):
        return NotImplemented
    planar = _in_planes(tensors, lambda: _core.chain_folded_fits(options, tensors, folded))
    given = (to_pixels(tensors[0]), *tensors[1:]) if planar else tensors
    made = _core.plain_chain_folded(options, given, folded)
    if made is NotImplemented:
        return made
    count_kernel(_NAME)
    if not planar:
        return made
    output, weights = made
    normed = tensors[-3] is not None  # the running mean of the last stage
    return _as_parts(output, tensors[1 :: PER_STAGE + 1], normed), weights


def folded_arguments(
    input: Tensor, stages: Sequence[Stage]
) -> tuple[FoldedOptions, tuple[Tensor | None, ...]]:
    """The options and tensors of `try_folded` for these stages."""
    options = []
    for s in stages:
        outputs, *_, side = s.weight.shape if isinstance(s.weight, Tensor) else (1, 1)
        groups = outputs if side > 1 else 1
        options.append((s.stride, s.stride, side // 2, side // 2, groups, s.eps, s.activation))
    return tuple(options), (input, *(t for s in stages for t in (*s[:PER_STAGE], None)))


def _try_watched(options: Options, tensors: tuple[Tensor | None, ...]) -> Any:
    """The same under dispatch modes. The operator counts itself."""
    if not chain_wins() or not forward_watched(tensors) or _trains_bias_alone(tensors):
        return NotImplemented
    if _from_inference(tensors):
        return NotImplemented
    if needs_graph(tensors):
        return _apply(options, *tensors)
    return run_watched(options, tensors)[0]


def conv_chain(input: Tensor, stages: Sequence[Stage], training: bool = True) -> Tensor:
    """Consecutive convolutions, each with a batch normalisation and an activation.

    Args:
        input: (N, C, H, W). The kernels take float32 on the CPU in dense channels_last, if the tier in use is avx2 or
            avx512. Contiguous images are put into channels_last and back, their gradients too: on an Intel Xeon a step
            of a chain takes 0.5 to 0.75 of the time of its parts, in channels_last 0.4 to 0.6.
        stages: one to eight. The kernels take 16 to 1024 channels, up to 131,072 weights of a 1 x 1 convolution, and
            images of which a few rows fit the caches.
        training: True: each batch is normalised by its own statistics. False: by running_mean and running_var, which
            must be given then and do not move; the kernels run if no gradient is wanted, with the normalisations
            folded into the weights.

    Everything else runs the operators that a chain is made of, one by one: other dtypes and devices, calls under
    torch.compile, torch.func, torch.jit.trace or autocast.

    Returns: (N, O, H', W') in the memory format that the parts of a chain give it: channels_last if the input or a
        weight is. Statistics are summed in float64. Results do not depend on the number of threads. For the backward
        the input and the convolutions' outputs are kept.

    Raises: ValueError without a stage or for an unknown activation; TypeError for an object that is not a `Stage`;
        else as torch.nn.functional.conv2d and `batch_norm_act`.
    """
    tensors = (input, *(t for s in stages or () if isinstance(s, Stage) for t in s[:PER_STAGE]))
    if has_torch_function(tensors):
        return handle_torch_function(conv_chain, tensors, input, stages, training)
    if not stages:
        raise ValueError(f"{_NAME}: expected at least one stage, got none")
    for stage in stages:
        if not isinstance(stage, Stage):
            raise TypeError(f"{_NAME}: expected a Stage, got {type(stage).__name__}")
        if stage.activation is not None:
            check_activation(_NAME, stage.activation)
    alike = without_subclasses(tensors)
    if alike is not None:
        rows = [alike[i : i + PER_STAGE] for i in range(1, len(alike), PER_STAGE)]
        stages = [Stage(*row, *s[PER_STAGE:]) for row, s in zip(rows, stages, strict=True)]
        return conv_chain(alike[0], stages, training)
    options = tuple((s.stride, s.momentum, s.eps, s.activation) for s in stages)
    ordinary = all(t is None or isinstance(t, Tensor) for t in tensors)
    output = NotImplemented
    if ordinary and training:
        output = try_chain(options, tensors)
    elif ordinary:
        made = try_folded(*folded_arguments(input, stages), None)
        output = made if made is NotImplemented else made[0]
    if output is NotImplemented:
        if not _compiling():
            count_reference(_NAME)
        return _reference(options, *tensors, training=training)
    return output


def conv2d_batch_norm_act(
    input: Tensor,
    weight: Tensor,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    activation: str | None = None,
    stride: int = 1,
    momentum: float = 0.1,
    eps: float = 1e-5,
    training: bool = True,
) -> Tensor:
    """`conv_chain` of one stage: a 1 x 1 or depthwise convolution, its batch normalisation, an activation.

    Args, returns and raises: as `Stage` and `conv_chain`.
    """
    stage = Stage(
        weight, norm_weight, norm_bias, running_mean, running_var, activation, stride, momentum, eps
    )
    return conv_chain(input, (stage,), training)
