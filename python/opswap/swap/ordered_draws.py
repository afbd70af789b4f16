# SPDX-License-Identifier: MIT
"""Draw random numbers in the order of elements, so that two models draw alike in any memory format.

torch fills a tensor in the order of its memory: with the same seed, a tensor in channels_last gets other elements.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from opswap._torch import tree_leaves, tree_map
from opswap.ops._layout import CHANNELS_LAST

__all__ = ["OrderedDraws"]


class OrderedDraws(TorchFunctionMode):
    """While it is active, a function that draws from a generator gets contiguous copies of its arguments.

    Its results have the memory format of the first argument, as without the mode. Functions that draw nothing run as
    they are, opswap's kernels included.

    Args: generator: torch's default one if it is None.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.generator = torch.default_generator if generator is None else generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        strided = [t for t in tree_leaves((args, kwargs)) if _is_strided(t)]
        if not strided:
            return func(*args, **kwargs)
        if _writes(func, args, kwargs):
            return _in_order_in_place(self.generator, func, args, kwargs)
        state = self.generator.get_state()
        result = func(*args, **kwargs)
        if torch.equal(self.generator.get_state(), state):
            return result
        self.generator.set_state(state)
        args, kwargs = tree_map(_contiguous, (args, kwargs))
        return tree_map(lambda t: _as(t, strided[0]), func(*args, **kwargs))


def _in_order_in_place(
    generator: torch.Generator, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A function that writes to its first argument: on a contiguous copy, if a trial shows that it draws."""
    state = generator.get_state()
    with torch.no_grad():
        copied, options = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, (args, kwargs))
        func(*copied, **options)
    if torch.equal(generator.get_state(), state):
        return func(*args, **kwargs)
    generator.set_state(state)
    target = args[0] if args else kwargs["input"]
    copied, options = tree_map(_contiguous, (args, kwargs))
    return target.copy_(func(*copied, **options))


def _writes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for x.name_() and for f(x, inplace=True)."""
    name = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return True
    if not kwargs.get("inplace", False) and not any(a is True for a in args):
        return False
    try:
        return bool(inspect.signature(func).bind(*args, **kwargs).arguments.get("inplace", False))
    except (TypeError, ValueError):  # a function in C
        return False


def _is_strided(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_contiguous()


def _contiguous(value: Any) -> Any:
    """A copy of a strided tensor, with the same gradient."""
    return value.clone(memory_format=torch.contiguous_format) if _is_strided(value) else value


def _as(value: Any, like: Tensor) -> Any:
    """The result in the memory format of an argument of the same number of dimensions."""
    memory_format = CHANNELS_LAST.get(like.dim())
    if memory_format is None or not isinstance(value, Tensor) or value.dim() != like.dim():
        return value
    return (
        value.contiguous(memory_format=memory_format)
        if like.is_contiguous(memory_format=memory_format)
        else value
    )
