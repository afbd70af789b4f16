# SPDX-License-Identifier: MIT
"""What a call checks before it runs a kernel: modes and transforms, whether a graph is recorded, plain tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from opswap import _core
from opswap._torch import call_backward_at_once, dispatch_modes, size_under_trace, transforms_active

from ._stats import reference_forced
from ._switch import active, disabled_here

__all__ = [
    "DeclinedError",
    "base_apply",
    "cached_constant",
    "check_memory",
    "concrete_size",
    "needs_graph",
    "plain_cpu",
    "plain_eager",
    "records_graphs",
    "seen_by_tracer",
    "tracing",
    "transforms_active",
    "without_autocast",
    "without_subclasses",
]


class DeclinedError(Exception):
    """The extension leaves the arguments to other code."""


# Looked up once: after a convolution the dictionaries on the way are no longer in the cache.
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_inferring = torch.is_inference_mode_enabled
_is_tracing = torch.jit.is_tracing
_NO_DISPATCH = Tensor.__torch_dispatch__


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


def records_graphs() -> bool:
    """True if autograd records operators on tensors that require gradients: never in inference mode, even where
    `torch.enable_grad` is entered in it."""
    return _grad_enabled() and (_compiling() or not _inferring())  # torch.compile cannot trace the last


def needs_graph(tensors: Iterable[Tensor | None]) -> bool:
    """True if autograd must record an operator on these tensors; None is skipped."""
    if _grad_enabled():
        for t in tensors:  # a generator in any() takes four times as long
            if t is not None and t.requires_grad:
                return _compiling() or not _inferring()
    return False


def plain_eager() -> bool:
    """True if nothing but autograd watches over operators: no mode, transform or trace, no forced reference."""
    return not _compiling() and not reference_forced() and _core.plain_eager()


@contextmanager
def without_autocast() -> Iterator[None]:
    """As torch.autocast("cpu", enabled=False), at a fifth of its cost."""
    if not torch.is_autocast_enabled("cpu"):
        yield
        return
    torch.set_autocast_enabled("cpu", False)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", True)


def plain_cpu(tensors: Sequence[Tensor]) -> bool:
    """True if a kernel may read these tensors without a call of the dispatcher.

    That is: `plain_eager`, and every tensor is an ordinary one on the CPU, no subclass, with memory, and no
    conjugate or negative view that is not yet carried out.
    """
    return plain_eager() and _core.plain_tensors(tensors)


def without_subclasses(tensors: Sequence[Any]) -> list[Any] | None:
    """The same with an alias of each tensor that is of a subclass; None if there is none, or if it may see operators.

    Call it once no `__torch_function__` is left to be asked: from here on a subclass that keeps Tensor's
    `__torch_dispatch__` changes nothing. The graph is then that of ordinary tensors. torch hides subclasses while the
    backward of one runs, so that a checkpoint runs its forward again with ordinary tensors, and compares the graphs.
    """
    if _compiling():
        return None
    found = False
    for t in tensors:
        if isinstance(t, Tensor) and type(t) is not Tensor and type(t) is not torch.nn.Parameter:
            if type(t).__torch_dispatch__ is not _NO_DISPATCH:
                return None
            found = True
    if not found:
        return None
    return [t.as_subclass(Tensor) if isinstance(t, Tensor) else t for t in tensors]


def seen_by_tracer() -> bool:
    """True while torch.compile, torch.export or make_fx record operators, and under any other dispatch mode.

    Not under torch.func, nor if no kernel may run.
    """
    if reference_forced():
        return False
    return torch.compiler.is_compiling() or bool(dispatch_modes() and not transforms_active())


def check_memory(name: str, **tensors: Tensor) -> None:
    """Raise RuntimeError for a tensor whose memory was released: torch's own operators would crash the process."""
    if not plain_eager():
        return
    for what, t in tensors.items():
        plain = type(t) in (Tensor, torch.nn.Parameter) and t.is_cpu and t.layout is torch.strided
        if plain and t.numel() and not t.untyped_storage().nbytes():
            raise RuntimeError(f"{name}: {what} of size {tuple(t.shape)} has no memory")


def base_apply(function: type[Function]) -> Callable[..., Any]:
    """The `apply` of a Function without a setup_context, for calls in which `plain_eager` is true.

    It is the one of Function's base class: Function's own, in Python, is needed for torch.func and setup_context alone.
    """
    call_backward_at_once(function)
    return super(Function, function).apply


def cached_constant(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keep the tensors that `make` makes of hashable arguments; not those that only a trace or a transform may hold."""
    kept = lru_cache(maxsize=256)(make)

    def get(*args: Any) -> Tensor:
        inside = torch.compiler.is_compiling() or dispatch_modes() or tracing() or transforms_active()
        return make(*args) if inside else kept(*args)

    return get
