# SPDX-License-Identifier: MIT
"""Run a model in float64 as it runs in a narrower dtype: with the same random numbers, and whatever dtype code names.

torch draws other numbers in another dtype, as `torch.rand(n, dtype=x.dtype)` in many a DropPath. And a model whose code
has `x.float()` or `torch.arange(n, dtype=torch.float32)` may not run in float64: a convolution refuses an input in
float32 beside weights in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from opswap._dispatch_mode import DispatchMode
from opswap._torch import tree_map

__all__ = ["InDouble"]

_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
# Operators that return random numbers of a dtype, and those that write them over a tensor.
_RETURN = ("aten::rand", "aten::randn", "aten::rand_like", "aten::randn_like", "aten::normal")
_FILL = (
    "aten::bernoulli_",
    "aten::cauchy_",
    "aten::exponential_",
    "aten::geometric_",
    "aten::log_normal_",
    "aten::normal_",
    "aten::uniform_",
)


class InDouble(DispatchMode):
    """While it is active, random numbers in float64 are those that torch draws in another dtype.

    Args: drawn: that dtype. widens: operators read and return float64 where they would a narrower dtype, too, but for
        those that write to their arguments.
    """

    def __init__(self, drawn: torch.dtype, *, widens: bool = False) -> None:
        super().__init__()
        self.drawn, self.widens = drawn, widens

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in _FILL and args[0].dtype is torch.float64:
            drawn = func(*tree_map(self._narrowed, args), **kwargs)
            return args[0].copy_(drawn)
        if name in _RETURN:
            return self._widened(self._returned(func, args, kwargs))
        if not self.widens or func._schema.is_mutable:
            return func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            args, kwargs = tree_map(_wider, (args, kwargs))
        return tree_map(_wider, func(*args, **kwargs))

    def _returned(self, func: Any, args: Any, kwargs: Any) -> Any:
        like = args[0].dtype if args and isinstance(args[0], Tensor) else None
        if (kwargs.get("dtype") or like) is not torch.float64:
            return func(*args, **kwargs)
        if "dtype" in {a.name for a in func._schema.arguments}:
            return func(*args, **{**kwargs, "dtype": self.drawn}).double()
        return func(*tree_map(self._narrowed, args), **kwargs).double()

    def _narrowed(self, value: Any) -> Any:
        return value.to(self.drawn) if isinstance(value, Tensor) and value.dtype is torch.float64 else value

    def _widened(self, value: Any) -> Any:
        return tree_map(_wider, value) if self.widens else value


def _wider(value: Any) -> Any:
    """A tensor in the wider dtype, a wider dtype, or any other value as it is."""
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    if isinstance(value, Tensor) and value.dtype in _WIDER:
        return value.to(_WIDER[value.dtype])
    return value
