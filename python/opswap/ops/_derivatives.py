# SPDX-License-Identifier: MIT
"""Derivatives of any order for pairs of operators, made of the two operators again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._operator import Kept, Operator

__all__ = ["bilinear_pair", "linear_pair", "read_by_gradients"]


def linear_pair(
    forward: Operator,
    backward: Operator | Callable[..., Tensor],
    keep: Callable[..., Kept],
    derivative: Callable[..., Tensor],
) -> None:
    """Declare that the derivative of `forward` is a linear map and `backward` its transpose.

    Args:
        forward: an operator with one differentiable output, linear in its first tensor; others have no gradient.
        backward: called as `backward(grad_output, *saved, *settings)`; an operator gets its derivatives too.
        keep: as of `Operator`, of `forward`.
        derivative: `derivative(tangent, *saved, *settings)`, written with operators.
    """
    forward.keep = keep
    forward.gradient = lambda saved, settings, needed, grad: (
        backward(grad, *saved, *settings),
        *(None,) * (len(needed) - 1),
    )
    forward.tangent = lambda saved, settings, tangent, *_: derivative(tangent, *saved, *settings)
    if forward is backward or not isinstance(backward, Operator):
        return
    backward.keep = lambda constants, tensors, _: (tensors[1:], constants)
    backward.gradient = lambda saved, settings, _, grad: (
        derivative(grad, *saved, *settings),
        *(None,) * len(saved),
    )
    backward.tangent = lambda saved, settings, tangent, *_: backward(tangent, *saved, *settings)


def bilinear_pair(forward: Operator, backward: Operator, spares: bool = False) -> None:
    """Declare that `forward(input, weight, bias, *constants)` is linear in each of the first two, plus the bias.

    Args:
        backward: `backward(grad_output, input, weight, *constants, mask)` returns the gradients of input, weight and
            bias if mask is True, and tensors without elements for the others: an operator returns tensors only.
        spares: save the input only for a gradient of the weight, and the other way round, as torch's products do. The
            other may then change before the backward, which gets a dense tensor without values in its place. torch's
            convolutions save both.
    """
    _Bilinear(forward, backward)
    if spares:
        forward.spare = read_by_gradients


def read_by_gradients(tensors: Sequence[Tensor | None], needed: Sequence[bool]) -> Sequence[Tensor | None]:
    """Of input and weight of a product those that its gradients read, None for the others.

    needed: the gradients that are asked for, of the input and the weight first.
    """
    (input, weight), (of_input, of_weight, *_) = tensors, needed
    return input if of_weight else None, weight if of_input else None


class _Bilinear:
    def __init__(self, forward: Operator, backward: Operator) -> None:
        self._forward, self._backward = forward, backward
        forward.keep = lambda constants, tensors, _: (
            tensors[:2],
            ([t.shape for t in tensors[:2]], constants),
        )
        forward.gradient, forward.tangent = self._gradient, self._tangent
        backward.keep = lambda constants, tensors, _: (tensors, constants)
        backward.gradient, backward.tangent = self._second_gradient, self._second_tangent

    def _gradient(
        self, saved: Sequence[Tensor | None], settings: Any, needed: Sequence[bool], grad: Tensor
    ) -> list[Tensor | None]:
        sizes, constants = settings
        both = [grad.new_empty(s) if t is None else t for t, s in zip(saved, sizes, strict=True)]
        made = self._backward(grad, *both, *constants, tuple(needed))
        return [t if wanted else None for t, wanted in zip(made, needed, strict=True)]

    def _tangent(self, saved: Sequence[Tensor], settings: Any, *tangents: Any) -> Tensor:
        (input, weight), (t_input, t_weight, t_bias), (_, constants) = saved, tangents, settings
        first = self._forward(t_input, weight, t_bias, *constants)
        return first + self._forward(input, t_weight, None, *constants)

    def _of_output(
        self, saved: Sequence[Tensor], constants: Sequence[Any], of_input: Any, of_weight: Any, of_bias: Any
    ) -> Tensor | None:
        """The gradient of grad_output."""
        _, input, weight = saved
        if of_weight is None and of_input is None:  # neither has values if it is spared
            if of_bias is None:
                return None
            return self._forward(torch.zeros_like(input), torch.zeros_like(weight), of_bias, *constants)
        if of_weight is None:
            return self._forward(of_input, weight, of_bias, *constants)
        by_weight = self._forward(input, of_weight, of_bias, *constants)
        if of_input is None:
            return by_weight
        return self._forward(of_input, weight, None, *constants) + by_weight

    def _second_gradient(
        self, saved: Sequence[Tensor], settings: Sequence[Any], needed: Sequence[bool], *grads: Any
    ) -> Sequence[Any]:
        (*constants, mask), (grad_output, input, weight) = settings, saved
        of_input, of_weight, of_bias = (g if wanted else None for g, wanted in zip(grads, mask, strict=True))
        first = self._of_output(saved, constants, of_input, of_weight, of_bias) if needed[0] else None
        second = third = None
        if needed[1] and of_weight is not None:
            second = self._backward(grad_output, input, of_weight, *constants, (True, False, False))[0]
        if needed[2] and of_input is not None:
            third = self._backward(grad_output, of_input, weight, *constants, (False, True, False))[1]
        return first, second, third

    def _second_tangent(
        self, saved: Sequence[Tensor], settings: Sequence[Any], *tangents: Any
    ) -> tuple[Tensor, ...]:
        *constants, mask = settings
        both = (*mask[:2], False)
        first = self._backward(tangents[0], *saved[1:], *constants, mask)
        second = self._backward(saved[0], *tangents[1:], *constants, both)
        return tuple([a + b if wanted else a for a, b, wanted in zip(first, second, both, strict=True)])
