# SPDX-License-Identifier: MIT
"""The operators of a normalisation whose statistics are its own, forward and backward: what group and layer norm share.

The forward returns the output and the statistics, which the backward gets in place of finding them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._layout import dense_copy, empty, suggest_memory_format
from .._operator import Operator, join_batch, one_example, split_batch
from .._stats import count_kernel, count_reference
from ._operators import check_backward, description, second_gradients, stand_in

__all__ = ["Backward", "Forward", "make_pair"]


class Forward(NamedTuple):
    """core: of opswap._core, called as core(*constants, input, weight, bias); NotImplemented declines.

    reference: in torch's operators, differentiable; fake: outputs without memory. Both are called as the operator.
    """

    core: Callable[..., Any]
    reference: Callable[..., Any]
    fake: Callable[..., Any]


class Backward(NamedTuple):
    """core: core(*constants, mask, grad_output, input, statistics, weight, bias) -> gradients, None if not needed.

    batched: the operator in torch's operators, which batch and are differentiable.
    """

    core: Callable[..., Any]
    batched: Callable[..., list[Tensor]]


def _batch(run: Any, info: Any, dims: Sequence[Any], *arguments: Any) -> Any:
    """Mapped inputs of the same parameters are a larger batch."""
    if dims[1] is None and dims[2] is None:
        made = run(join_batch(info, arguments[0], dims[0]), *arguments[1:])
        return tuple([split_batch(info, t) for t in made]), (0, 0)
    made = [run(*one_example(dims, arguments, i)) for i in range(info.batch_size)]
    return tuple([torch.stack(parts) for parts in zip(*made, strict=True)]), (0, 0)


def _batch_backward(run: Any, info: Any, dims: Sequence[Any], *arguments: Any) -> Any:
    made = [run(*one_example(dims, arguments, i)) for i in range(info.batch_size)]
    stacked = [torch.stack(parts) for parts in zip(*made, strict=True)]
    return stacked, [0] * len(stacked)


def _make_backward(name: str, constants: str, backward: Backward) -> Operator:
    def reference(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
        check_backward(name, grad_output, input)
        results = backward.batched(grad_output, input, *arguments)
        if arguments[-1][0]:
            results[0] = dense_copy(results[0], suggest_memory_format(input))
        return results

    def kernel(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
        statistics, weight, bias, *options, mask = arguments
        tensors, options = (input, statistics, weight, bias), (*options, tuple(mask))
        try:
            made = backward.core(*options, grad_output, *tensors)
        except RuntimeError:
            check_backward(name, grad_output, input)  # words what the extension refused
            raise
        if made is NotImplemented:
            made = backward.core(*options, dense_copy(grad_output, suggest_memory_format(input)), *tensors)
        if made is NotImplemented:
            count_reference(name)
            return reference(grad_output, input, *arguments)
        count_kernel(name)
        return [t for t in made if t is not None]

    def fake(grad_output: Tensor, input: Tensor, *arguments: Any) -> list[Tensor]:
        check_backward(name, grad_output, input)
        _, weight, bias, *_, mask = arguments
        made = (
            empty(input, input.shape, suggest_memory_format(input)),
            *(None if v is None else v.new_empty(tuple(v.shape)) for v in (weight, bias)),
        )
        return [t for t, needed in zip(made, mask, strict=True) if needed and t is not None]

    return Operator(
        f"{name}(Tensor grad_output, Tensor input, Tensor statistics, Tensor? weight, Tensor? bias, "
        f"{constants}, bool[3] mask) -> Tensor[]",
        kernel,
        reference,
        fake,
        batch=_batch_backward,
        batched=backward.batched,
        keep=lambda constants, tensors, _: (tensors, constants),
        gradient=lambda saved, settings, _, *grads: second_gradients(
            backward.batched, saved, settings, grads
        ),
        in_forward_mode=backward.batched,
    )


def make_pair(name: str, constants: str, forward: Forward, backward: Backward) -> Operator:
    """`opswap::<name>(input, weight, bias, constants) -> (output, statistics)`, with its gradient.

    The gradient of input is dense in the memory format of input; gradients where the mask of the backward is False are
    neither computed nor returned.

    Args: constants: of the schema, such as "float eps"; they are the last arguments of every function but `core`.
    """
    of_gradient = _make_backward(f"{name}_backward", constants, backward)

    def kernel(input: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any) -> Any:
        made = forward.core(*options, input, weight, bias)
        if made is NotImplemented:
            count_reference(name)
            return forward.reference(input, weight, bias, *options)
        count_kernel(name)
        return made

    def keep(options: tuple[Any, ...], tensors: Sequence[Tensor | None], outputs: Any) -> Any:
        input, weight, bias = tensors
        return (input, outputs[1], weight), (description(bias), options)

    def gradient(saved: Any, settings: Any, needed: Sequence[bool], grad_output: Tensor, *_: Any) -> Any:
        (input, statistics, weight), (described, options) = saved, settings
        bias = stand_in(described, input, weight)
        statistics = statistics.contiguous()  # a hook on saved tensors may return other strides
        made = of_gradient(grad_output, input, statistics, weight, bias, *options, tuple(needed))
        if False not in needed:
            return made
        results = iter(made)
        return [next(results) if asked else None for asked in needed]

    return Operator(
        f"{name}(Tensor input, Tensor? weight, Tensor? bias, {constants}) -> (Tensor, Tensor)",
        kernel,
        forward.reference,
        forward.fake,
        differentiable=1,
        batch=_batch,
        keep=keep,
        gradient=gradient,
        in_forward_mode=forward.reference,
    )
