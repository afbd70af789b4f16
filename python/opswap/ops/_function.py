# SPDX-License-Identifier: MIT
"""One description of a differentiable operator, two autograd Functions.

`torch.autograd.Function.apply` inspects the signature of `forward` on every call when the class has a
`setup_context`, which costs three times as much as the rest of the call. Eager code therefore gets a class
without one; torch.compile, torch.export, torch.func and forward-mode AD need a class that has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function, forward_ad

__all__ = ["make_apply", "transforms_active"]


def transforms_active() -> bool:
    """True where a plain call would bypass torch.compile, torch.func or forward-mode AD."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def make_apply(
    name: str,
    forward: Callable[..., Any],
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
    jvp: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return `apply(*args)`, differentiable in eager mode and under every transform.

    Args:
        name: shown in `grad_fn`, so that a printed graph names the operator.
        forward: computes the outputs from `args`, without a context.
        setup: `setup(ctx, args, outputs)` stores what the backward needs.
        backward: `backward(ctx, *grad_outputs)`; written with differentiable functions, so that it can be
            differentiated again.
        jvp: `jvp(ctx, *tangents)`, forward-mode derivative.
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
    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup),
        "backward": staticmethod(backward),
        "generate_vmap_rule": True,
    }
    if jvp is not None:
        members["jvp"] = staticmethod(jvp)
    traced = type(name, (Function,), members)

    def apply(*args: Any) -> Any:
        return traced.apply(*args) if transforms_active() else eager.apply(*args)

    return apply
