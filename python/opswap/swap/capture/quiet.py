# SPDX-License-Identifier: MIT
"""Run copies of a model without side effects: no hooks of the user or of the process, no random numbers drawn."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from opswap._dispatch_mode import DispatchMode
from opswap._draws import generators_kept
from opswap._torch import is_compiled_module, tree_map
from opswap.ops._layout import is_strided, suggest_memory_format

from .shell import Shell, computes, own_hooks

__all__ = [
    "Draws",
    "contiguous_inputs",
    "copied_inputs",
    "draws_undone",
    "generators_kept",
    "hooks_left_out",
    "in_channels_last",
    "leaves_out",
    "quiet_call",
    "quiet_copy",
    "seed_generators",
]


def quiet_copy(model: nn.Module, *, stock: bool) -> nn.Module:
    """A copy of the model that may be run: code sees its hooks, but only those that `computes` knows are called.

    Args: stock: the copy is as before a swap; else it is swapped as the model is.
    """
    return Shell(model, own=True, stock=stock, call=quiet_call).root


def quiet_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call the module's forward with the hooks by which the model computes, and no others; see `_is_called`.

    What torch.compile made of a module runs uncompiled.
    """
    if is_compiled_module(module):
        return module._orig_mod(*args, **kwargs)
    for key, hook in list(module._forward_pre_hooks.items()):
        if not _is_called(module, key, hook):
            continue
        if key in module._forward_pre_hooks_with_kwargs:
            args, kwargs = hook(module, args, kwargs) or (args, kwargs)
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    result = module.forward(*args, **kwargs)
    for key, hook in list(module._forward_hooks.items()):
        if not _is_called(module, key, hook):
            continue
        named = (kwargs,) if key in module._forward_hooks_with_kwargs else ()
        changed = hook(module, args, *named, result)
        result = result if changed is None else changed
    return result


def leaves_out(module: nn.Module, *, before: bool) -> bool:
    """True if `quiet_call` leaves out a hook before the forward, or else one after it."""
    hooks = module._forward_pre_hooks if before else module._forward_hooks
    return not all(_is_called(module, key, hook) for key, hook in hooks.items())


def hooks_left_out(model: nn.Module) -> str:
    """A sentence for an error of a quiet copy that has hooks which are not called; else ""."""
    left_out = any(leaves_out(m, before=before) for m in model.modules() for before in (True, False))
    return "hooks of the model do not run here, which its forward may need" if left_out else ""


def _is_called(module: nn.Module, key: int, hook: Any) -> bool:
    """True for hooks that `computes` knows, and for those that a forward has put on the copy itself."""
    return computes(hook) or key in own_hooks(module)


def copied_inputs(inputs: Any) -> Any:
    """The inputs with tensors of their own, of the same strides and with the same need of a gradient."""
    return tree_map(lambda t: _copied(t) if isinstance(t, Tensor) else t, inputs)


def _copied(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        twin = tensor.detach().clone()
    if type(tensor) is nn.Parameter:  # a forward may check the class
        return nn.Parameter(twin, tensor.requires_grad)
    twin.requires_grad_(tensor.requires_grad)
    return twin if tensor.is_leaf else twin.clone()  # which code may write to


def in_channels_last(value: Any) -> bool:
    """True for images in channels_last."""
    return (
        isinstance(value, Tensor)
        and is_strided(value)
        and suggest_memory_format(value) is torch.channels_last
    )


def contiguous_inputs(inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The inputs with contiguous copies of images in channels_last; None if there are no such."""
    copied = False

    def dense(value: Any) -> Any:
        nonlocal copied
        if not in_channels_last(value):
            return value
        copied = True
        return value.detach().contiguous().requires_grad_(value.requires_grad)

    twins = tree_map(dense, inputs)
    return twins if copied else None


def seed_generators(seed: int) -> None:
    """Seed the random generators of Python, NumPy and torch."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


class Draws(DispatchMode):
    """Whether an operator of this thread draws from torch's random generators."""

    seen = False

    def listens(self) -> bool:
        """True while operators count."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()) and self.listens():
            self.seen = True
        return func(*args, **(kwargs or {}))


@contextmanager
def draws_undone() -> Iterator[None]:
    """`generators_kept` for stock code, which leaves torch's generators alone if only other threads drew from them."""
    alone = threading.active_count() == 1 or not hasattr(DispatchMode, "__torch_dispatch__")
    draws = None if alone else Draws()
    with generators_kept(None if draws is None else lambda: draws.seen), draws or nullcontext():
        yield
