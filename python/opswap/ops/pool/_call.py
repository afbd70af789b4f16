# SPDX-License-Identifier: MIT
"""How a registered operator of this family calls its kernel, and the short way of an ordinary eager call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._function import DeclinedError, base_apply, needs_graph, plain_eager, transforms_active
from .._layout import dense_copy, suggest_memory_format
from .._operator import Operator
from .._stats import count_kernel, count_reference, reference_forced

__all__ = [
    "PlainCall",
    "find_again",
    "in_format_of",
    "larger_input",
    "needs_function",
    "plain_torch",
    "run_kernel",
]


def run_kernel(
    name: str,
    kernel: Callable[..., Any],
    inputs: Sequence[Tensor],
    arguments: Sequence[Any],
    memory_format: torch.memory_format,
) -> Any:
    """What `kernel(*inputs, *arguments)` returns, on copies of the inputs if it cannot read them in place.

    Args: memory_format: of the copies. Raises: RuntimeError for what the extension refuses.
    """
    made = kernel(*inputs, *arguments)
    if made is NotImplemented:
        made = kernel(*(dense_copy(t, memory_format) for t in inputs), *arguments)
        if made is NotImplemented:
            raise RuntimeError(f"{name}: no kernel for {inputs[0].dtype} in {memory_format}")
    count_kernel(name)
    return made


class PlainCall:
    """The short way of an ordinary eager call, whose arguments the extension reads and checks by itself.

    Args:
        name: of the operator, in the counts.
        kernel: `kernel(kind, input, *arguments, False)` returns the output; with True instead, also the tensors that
            the gradient needs, and a tuple of other arguments. NotImplemented for a call that is not an ordinary one.
        gradient: `gradient(*others, *tensors, grad_output)`, or NotImplemented.
        otherwise: the same for any gradient, differentiable.
        keeps_values: the gradient needs input and output as well, and no other arguments.
    """

    def __init__(
        self,
        name: str,
        kernel: Callable[..., Any],
        gradient: Callable[..., Any],
        otherwise: Callable[..., Tensor],
        keeps_values: bool = False,
    ) -> None:
        self._name, self._kernel = name, kernel
        name_backward = f"{name}_backward"

        def forward(ctx: Any, kind: Any, input: Tensor, *arguments: Any) -> Tensor:
            made = self._kernel(kind, input, *arguments, True)
            if made is NotImplemented:
                raise DeclinedError
            # What is kept is not an output, for which autograd would make a gradient.
            if keeps_values:
                output, ctx.described = made[0], ()
                ctx.save_for_backward(input, *made)
            else:
                output, *kept, ctx.described = made
                ctx.save_for_backward(*kept)
            ctx.nones = (None,) * len(arguments)
            count_kernel(name)
            return output

        def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
            arguments = (*ctx.described, *ctx.saved_tensors, grad_output)
            made = NotImplemented
            if plain_eager() and not needs_graph((grad_output,)):
                made = gradient(*arguments)
            if made is NotImplemented:
                made = otherwise(*arguments)
            else:
                count_kernel(name_backward)
            return None, made, *ctx.nones

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self._apply = base_apply(type(name.title().replace("_", ""), (Function,), members))

    def __call__(self, kind: Any, input: Any, *arguments: Any) -> Any:
        """The output, or NotImplemented."""
        if not plain_eager() or not isinstance(input, Tensor):
            return NotImplemented
        if needs_graph((input,)):
            try:
                return self._apply(kind, input, *arguments)
            except DeclinedError:
                return NotImplemented
        output = self._kernel(kind, input, *arguments, False)
        if output is not NotImplemented:
            count_kernel(self._name)
        return output


def plain_torch(input: Tensor, name: str) -> bool:
    """True, and counted, if a public function runs as torch's own code: other devices, or when forced."""
    if input.device.type == "cpu" and not reference_forced():
        return False
    if not torch.compiler.is_compiling():
        count_reference(name)
    return True


def needs_function(tensor: Tensor) -> bool:
    """True if a call needs the autograd Function; else the operator alone does, and saves nothing."""
    return needs_graph((tensor,)) or (not torch.compiler.is_compiling() and transforms_active())


def in_format_of(input: Tensor, output: Tensor) -> Tensor:
    """`output`, pooled of a volume without a batch, in the memory format of `input`.

    Under transforms as it is, contiguous like torch's: within vmap no other format can be asked for.
    """
    if transforms_active():
        return output
    return output.contiguous(memory_format=suggest_memory_format(input))


def larger_input(constants: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """The constants of a gradient, of which the first is the size of the input, for `count` times as many images."""
    size, *rest = constants
    return (size[0] * count, *size[1:]), *rest


def find_again(operator: Operator, choosing: Operator) -> None:
    """Let the gradient of `operator`, which keeps no choice, run `choosing`, which does.

    For graphs that were captured for inference but are differentiated.
    """

    def of_choosing(saved: Sequence[Tensor], constants: tuple[Any, ...]) -> tuple[Any, Any]:
        return choosing.keep(constants, saved, choosing(*saved, *constants))

    operator.keep = lambda constants, tensors, _: (tensors, constants)
    operator.gradient = lambda saved, settings, *rest: choosing.gradient(*of_choosing(saved, settings), *rest)
    operator.tangent = lambda saved, settings, *rest: choosing.tangent(*of_choosing(saved, settings), *rest)
