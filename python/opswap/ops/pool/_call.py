# SPDX-License-Identifier: MIT
"""How the operators of this family are registered, and how a registered operator calls its kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._function import (
    DeclinedError,
    batch_together,
    make_apply,
    needs_graph,
    plain_cpu,
    plain_eager,
    split_batch,
    transforms_active,
)
from .._layout import dense_copy, empty
from .._library import library
from .._stats import count_kernel, count_reference, reference_forced

__all__ = [
    "batch_together",
    "dense_copy",
    "differentiable",
    "empty",
    "needs_function",
    "plain_call",
    "plain_gradient",
    "plain_made",
    "plain_torch",
    "register",
    "run_kernel",
    "split_batch",
]


def run_kernel(
    name: str,
    kernel: Callable[..., Any],
    inputs: Sequence[Tensor],
    arguments: Sequence[Any],
    memory_format: torch.memory_format,
) -> Any:
    """What `kernel(*inputs, *arguments)` returns, on copies of the inputs where it cannot read them in place.

    Args: memory_format: of the copies. Raises: RuntimeError for what the extension refuses.
    """
    made = kernel(*inputs, *arguments)
    if made is NotImplemented:
        made = kernel(*(dense_copy(t, memory_format) for t in inputs), *arguments)
        if made is NotImplemented:
            raise RuntimeError(f"{name}: no kernel for {inputs[0].dtype} in {memory_format}")
    count_kernel(name)
    return made


def plain_call(
    name: str, kernel: Callable[..., Any], apply: Callable[..., Any], kind: Any, input: Any, *arguments: Any
) -> Any:
    """The output of an ordinary call, which the extension makes out by itself; NotImplemented for any other.

    Args:
        kernel: `kernel(kind, input, *arguments, False)` returns the output, or NotImplemented.
        apply: that of a Function: `apply(kind, input, *arguments)` is the same with a graph, and raises
            DeclinedError, where `kernel` returns NotImplemented.
    """
    if not plain_eager() or not isinstance(input, Tensor):
        return NotImplemented
    if needs_graph((input,)):
        try:
            return apply(kind, input, *arguments)
        except DeclinedError:
            return NotImplemented
    output = kernel(kind, input, *arguments, False)
    if output is not NotImplemented:
        count_kernel(name)
    return output


def plain_made(name: str, made: Any) -> Any:
    """Of the forward of a Function: what the extension made. Raises: DeclinedError for NotImplemented."""
    if made is NotImplemented:
        raise DeclinedError
    count_kernel(name)
    return made


def plain_gradient(
    name: str, kernel: Callable[..., Any], otherwise: Callable[..., Any], *arguments: Any
) -> Tensor:
    """The gradient that `kernel(*arguments)` makes where that is all, else the one of `otherwise(*arguments)`.

    Args: arguments: the last one is the gradient of the output.
    """
    if plain_eager() and not needs_graph(arguments[-1:]):
        gradient = kernel(*arguments)
        if gradient is not NotImplemented:
            count_kernel(name)
            return gradient
    return otherwise(*arguments)


def plain_torch(input: Tensor, name: str) -> bool:
    """True, and counted, where a public function runs as torch's own code: other devices, or when forced."""
    if input.device.type == "cpu" and not reference_forced():
        return False
    if not torch.compiler.is_compiling():
        count_reference(name)
    return True


def needs_function(tensor: Tensor) -> bool:
    """True where a call needs the autograd Function; else the operator alone does, and saves nothing."""
    return needs_graph((tensor,)) or (not torch.compiler.is_compiling() and transforms_active())


def differentiable(
    name: str,
    forward: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
    jvp: Callable[..., Any],
    vmap: Callable[..., Any],
) -> Callable[..., Any]:
    """`forward`, recorded by autograd where its last argument, a tensor, needs that. Args: as `make_apply`."""
    apply = make_apply(name, forward, setup, backward, jvp, vmap)

    def run(*args: Any) -> Any:
        return (apply if needs_function(args[-1]) else forward)(*args)

    return run


def register(
    schema: str,
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
) -> Any:
    """Define `opswap::<schema>`: `kernel` on the CPU, `reference` elsewhere and when forced.

    Returns: the operator, called without the dispatcher where nothing needs it, which halves the cost of a call.
    """
    name = schema.split("(")[0]
    tensors = schema.split("->")[0].count("Tensor ")

    def counted(*args: Any) -> Any:
        count_reference(name)
        return reference(*args)

    def on_cpu(*args: Any) -> Any:
        return counted(*args) if reference_forced() else kernel(*args)

    library.define(schema)
    library.impl(name, on_cpu, "CPU")
    library.impl(name, counted, "CompositeExplicitAutograd")
    torch.library.register_fake(f"opswap::{name}", fake, lib=library)
    torch.library.register_vmap(f"opswap::{name}", vmap, lib=library)
    operator = getattr(torch.ops.opswap, name).default

    def call(*args: Any) -> Any:
        if plain_cpu(args[:tensors]):
            # The dispatcher finds memory that the extension does not, and the operator words the errors.
            with contextlib.suppress(RuntimeError):
                return kernel(*args)
        return operator(*args)

    return call
