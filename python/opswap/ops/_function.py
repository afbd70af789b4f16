# SPDX-License-Identifier: MIT
"""One description of a differentiable operator, one autograd Function for every kind of caller.

`torch.autograd.Function.apply` inspects the signature of `forward` on every call when the class has a
`setup_context`, which costs three times as much as the rest of the call. Eager code therefore gets a class
without one; torch.compile, torch.export, torch.func and forward-mode AD need a class that has one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from opswap import _core
from opswap._torch import dispatch_modes, size_under_trace, transforms_active

from ._stats import reference_forced
from ._switch import active, disabled_here

__all__ = [
    "DeclinedError",
    "base_apply",
    "batch_together",
    "cached_constant",
    "check_memory",
    "concrete_size",
    "make_apply",
    "make_eager_apply",
    "needs_graph",
    "plain_cpu",
    "plain_eager",
    "split_batch",
    "tracing",
    "transforms_active",
]


class DeclinedError(Exception):
    """The extension wants somebody else to look at the arguments."""


# Looked up once: after a convolution the dictionaries on the way are no longer in the cache.
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_is_tracing = torch.jit.is_tracing


def tracing() -> bool:
    """True in `disabled`, and under torch.jit.trace and torch.onnx.export, whose graphs run without opswap.

    The public functions then call torch's operators, and no others.
    """
    if active and disabled_here():
        return True
    return not _compiling() and (_is_tracing() or _exporting_to_onnx())


def _exporting_to_onnx() -> bool:
    onnx = sys.modules.get("torch.onnx")  # torch imports it with the first export
    return onnx is not None and onnx.is_in_onnx_export()


def concrete_size(tensor: Tensor) -> Sequence[int]:
    """`tensor.shape`, and under torch.jit.trace, where the sizes are tensors, the same in Python's ints."""
    if _compiling() or not _is_tracing():
        return tensor.shape
    return size_under_trace(tensor)


def needs_graph(tensors: Iterable[Tensor]) -> bool:
    """True where autograd must record an operator on these tensors."""
    if _grad_enabled():
        for t in tensors:  # a generator in any() takes four times as long
            if t.requires_grad:
                return True
    return False


def plain_eager() -> bool:
    """True where nothing but autograd watches over operators: no mode, transform or trace, no forced reference."""
    return not _compiling() and not reference_forced() and _core.plain_eager()


def plain_cpu(tensors: Sequence[Tensor]) -> bool:
    """True where a kernel may read these tensors without asking the dispatcher.

    That is: `plain_eager`, and every tensor is an ordinary one on the CPU, no subclass, with memory, and no
    conjugate or negative view that is not yet carried out.
    """
    return plain_eager() and _core.plain_tensors(tensors)


def check_memory(name: str, **tensors: Tensor) -> None:
    """Raise RuntimeError for a tensor whose memory was released: torch's own operators would crash the process."""
    if not plain_eager():
        return
    for what, t in tensors.items():
        plain = type(t) in (Tensor, torch.nn.Parameter) and t.is_cpu and t.layout is torch.strided
        if plain and t.numel() and not t.untyped_storage().nbytes():
            raise RuntimeError(f"{name}: {what} of size {tuple(t.shape)} has no memory")


def base_apply(function: type[Function]) -> Callable[..., Any]:
    """The `apply` of a Function without a setup_context, for where `plain_eager` holds.

    It is the one of Function's base class: Function's own, in Python, serves torch.func and setup_context alone.
    """
    return super(Function, function).apply


def _eager_class(
    name: str,
    forward: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
) -> type[Function]:
    def eager_forward(ctx: Any, *args: Any) -> Any:
        outputs = forward(*args)
        setup(ctx, args, outputs)
        return outputs

    members = {"forward": staticmethod(eager_forward), "backward": staticmethod(backward)}
    return type(name, (Function,), members)


def cached_constant(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep the tensors that `make` makes of hashable arguments; not those that only a trace may hold."""
    kept = lru_cache(maxsize=256)(make)

    def get(*args: Any) -> Tensor:
        traced = torch.compiler.is_compiling() or dispatch_modes() or tracing()
        return make(*args) if traced else kept(*args)

    return get


def make_eager_apply(
    name: str,
    forward: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
) -> Callable[..., Any]:
    """Return `apply(*args)`, differentiable in eager mode only: where `plain_eager` holds. Args: as `make_apply`."""
    return base_apply(_eager_class(name, forward, setup, backward))


def make_apply(
    name: str,
    forward: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
    jvp: Callable[..., Any] | None = None,
    vmap: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return `apply(*args)`, differentiable in eager mode and under every transform.

    Args:
        name: shown in `grad_fn`, so that a printed graph names the operator.
        forward: computes the outputs from `args`, without a context.
        setup: `setup(ctx, args, outputs)` stores what the backward needs.
        backward: `backward(ctx, *grad_outputs)`; written with differentiable functions, so that it can be
            differentiated again.
        jvp: `jvp(ctx, *tangents)`, forward-mode derivative.
        vmap: `vmap(info, in_dims, *args)`, the batching rule; without one torch generates it, which fails where the
            backward applies a Function of its own.
    """

    eager = _eager_class(name, forward, setup, backward)
    members: dict[str, Any] = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup),
        "backward": staticmethod(backward),
    }
    if vmap is None:
        members["generate_vmap_rule"] = True
    else:
        members["vmap"] = staticmethod(vmap)
    compiled = type(name, (Function,), members)
    transformed = compiled if jvp is None else type(name, (Function,), {**members, "jvp": staticmethod(jvp)})

    def apply(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return compiled.apply(*args)
        return (transformed if transforms_active() else eager).apply(*args)

    return apply


def batch_together(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """Under vmap: the mapped dimension joins the batch, which comes first."""
    mapped = (
        tensor.unsqueeze(0).expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    )
    return mapped.flatten(0, 1)


def split_batch(info: Any, tensor: Tensor) -> Tensor:
    """The inverse of `batch_together`, the mapped dimension first."""
    return tensor.unflatten(0, (info.batch_size, tensor.shape[0] // info.batch_size))
