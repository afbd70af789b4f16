# SPDX-License-Identifier: MIT
"""Convolutions by a kernel as operators, for what records operators: torch.compile, torch.export, make_fx.

An eager call has a shorter way of its own. Where no kernel fits, the operator runs torch's convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as torch_functional
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ._convolution import library_backward
from ._derivatives import bilinear_pair
from ._layout import empty, exactly_dense, suggest_memory_format
from ._operator import Operator, join_batch, one_example, split_batch
from ._stats import count_kernel, count_reference

__all__ = ["ConvolutionOperator"]


class ConvolutionOperator:
    """`opswap::<name>(input, weight, bias, *options)`, and `opswap::<name>_backward`.

    Args:
        options: of the schema, each with a comma in front.
        window: `window(weight, *options)` -> stride, padding, groups, dilation.
        kernel: `kernel(input, weight, bias, *options)` -> the output, or NotImplemented.
        kernel_backward: `kernel_backward(grad_output, input, weight, *options, *mask)` -> three gradients, None if
            mask is False, or NotImplemented.

    The output and the gradient of the input are dense in the memory format of the input, the gradient of the weight in
    that of the weight.
    """

    def __init__(
        self,
        name: str,
        options: str,
        window: Callable[..., tuple[Sequence[int], Sequence[int], int, Sequence[int]]],
        kernel: Callable[..., Any],
        kernel_backward: Callable[..., Any],
    ) -> None:
        self._name, self._window = name, window
        self._kernel, self._kernel_backward = kernel, kernel_backward
        self._operator = Operator(
            f"{name}(Tensor input, Tensor weight, Tensor? bias{options}) -> Tensor",
            self._run,
            self._reference,
            self._fake,
            batch=self._batch,
        )
        self._backward_operator = Operator(
            f"{name}_backward(Tensor grad_output, Tensor input, Tensor weight{options}, bool[3] mask) "
            "-> (Tensor, Tensor, Tensor)",
            self._run_backward,
            self._reference_backward,
            self._fake_backward,
            batch=self._batch_backward,
        )
        bilinear_pair(self._operator, self._backward_operator)
        self._register_flops()

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
        return self._operator(input, weight, bias, *options)

    # --- forward -----------------------------------------------------------------------------------------------------

    def _plain(self, input: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
        stride, padding, groups, dilation = self._window(weight, *options)
        return torch_functional.conv2d(input, weight, bias, stride, padding, dilation, groups)

    def _reference(self, input: Tensor, *arguments: Any) -> Tensor:
        return exactly_dense(self._plain(input, *arguments), suggest_memory_format(input))

    def _fake(self, input: Tensor, *arguments: Any) -> Tensor:
        return empty(input, self._plain(input, *arguments).shape, suggest_memory_format(input))

    def _run(self, input: Tensor, *arguments: Any) -> Tensor:
        output = self._kernel(input, *arguments)
        if output is NotImplemented:
            count_reference(self._name)
            return self._reference(input, *arguments)
        count_kernel(self._name)
        return exactly_dense(output, suggest_memory_format(input))

    @staticmethod
    def _batch(
        run: Callable[..., Tensor], info: Any, dims: Sequence[Any], *arguments: Any
    ) -> tuple[Tensor, int]:
        """Mapped inputs of one weight are a larger batch."""
        if dims[1] is None and dims[2] is None:
            output = run(join_batch(info, arguments[0], dims[0]), *arguments[1:])
            return split_batch(info, output), 0
        outputs = [run(*one_example(dims, arguments, i)) for i in range(info.batch_size)]
        return torch.stack(outputs), 0

    # --- backward ----------------------------------------------------------------------------------------------------

    def _dense(self, made: Sequence[Tensor | None], input: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """An operator returns tensors only: a tensor without elements represents None."""
        formats = (suggest_memory_format(input), suggest_memory_format(weight), torch.contiguous_format)
        return tuple(
            [
                input.new_empty(0) if t is None else exactly_dense(t, f)
                for t, f in zip(made, formats, strict=True)
            ]
        )

    def _reference_backward(self, grad: Tensor, input: Tensor, weight: Tensor, *arguments: Any) -> Any:
        *options, mask = arguments
        *window, dilation = self._window(weight, *options)
        made = library_backward(grad, input, weight, *window, mask, dilation)
        return self._dense(made, input, weight)

    def _fake_backward(self, grad: Tensor, input: Tensor, weight: Tensor, *arguments: Any) -> Any:
        sizes = (input.shape, weight.shape, weight.shape[:1])
        pairs = zip(sizes, arguments[-1], strict=True)
        return self._dense(
            [input.new_empty(size) if wanted else None for size, wanted in pairs], input, weight
        )

    def _run_backward(self, grad: Tensor, input: Tensor, weight: Tensor, *arguments: Any) -> Any:
        *options, mask = arguments
        if grad.stride(1) != 1 and input.stride(1) == 1:
            grad = grad.contiguous(memory_format=torch.channels_last)
        made = self._kernel_backward(grad, input, weight, *options, *mask)
        if made is NotImplemented:
            count_reference(f"{self._name}_backward")
            return self._reference_backward(grad, input, weight, *arguments)
        count_kernel(f"{self._name}_backward")
        return self._dense(made, input, weight)

    @staticmethod
    def _batch_backward(run: Callable[..., Any], info: Any, dims: Sequence[Any], *arguments: Any) -> Any:
        made = [run(*one_example(dims, arguments, i)) for i in range(info.batch_size)]
        return tuple([torch.stack(parts) for parts in zip(*made, strict=True)]), (0, 0, 0)

    # --- torch.utils.flop_counter ------------------------------------------------------------------------------------

    def _register_flops(self) -> None:
        """As many as of torch's own convolution. A counter copies the table of formulas when it is made."""

        def flops(input: Any, weight: Any, bias: Any, *_: Any, out_shape: Any, **__: Any) -> int:
            return 2 * out_shape[0] * math.prod(out_shape[2:]) * math.prod(weight)

        def flops_backward(grad: Any, input: Any, weight: Any, *arguments: Any, **_: Any) -> int:
            return sum(arguments[-1][:2]) * 2 * grad[0] * math.prod(grad[2:]) * math.prod(weight)

        register_flop_formula(self._operator.overload.overloadpacket)(flops)
        register_flop_formula(self._backward_operator.overload.overloadpacket)(flops_backward)
