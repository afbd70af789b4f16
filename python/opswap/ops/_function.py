# SPDX-License-Identifier: MIT
"""One description of a differentiable operator, one autograd Function for every kind of caller.

`torch.autograd.Function.apply` inspects the signature of `forward` on every call when the class has a
`setup_context`, which costs three times as much as the rest of the call. Eager code therefore gets a class
without one; torch.compile, torch.export, torch.func and forward-mode AD need a class that has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

__all__ = ["make_apply", "needs_graph", "plain_cpu", "transforms_active"]

_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def transforms_active() -> bool:
    """True where an operator called on its own would hide from torch.func or forward-mode AD."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def needs_graph(tensors: Iterable[Tensor]) -> bool:
    """True where autograd must record an operator on these tensors."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def plain_cpu(tensors: Iterable[Tensor]) -> bool:
    """True where a kernel may read these tensors without asking the dispatcher.

    That is: ordinary CPU tensors, and nothing at work that only the dispatcher knows how to serve, such as a
    dispatch mode, a transform, a trace, or a conjugate or negative view that is not yet carried out.
    """
    return (
        not torch.compiler.is_dynamo_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and not transforms_active()
        and torch._C._get_tracing_state() is None
        and all(
            type(t) in _PLAIN_TYPES and t.is_cpu and not (t.is_conj() or t.is_neg() or t._is_zerotensor())
            for t in tensors
        )
    )


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

    def eager_forward(ctx: Any, *args: Any) -> Any:
        outputs = forward(*args)
        setup(ctx, args, outputs)
        return outputs

    eager = type(
        name,
        (Function,),
        {"forward": staticmethod(eager_forward), "backward": staticmethod(backward)},
    )
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
        return transformed.apply(*args) if transforms_active() else eager.apply(*args)

    return apply
