# SPDX-License-Identifier: MIT
"""What modules returned in one run of a model: zeros of the same size stand for it where sizes are all that is asked.

A graph that calls modules is then run without them. Otherwise each module would run once more for every forward around
it, which takes minutes for deep models and large images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opswap._dispatch_mode import DispatchMode
from opswap.ops._layout import CHANNELS_LAST

__all__ = ["NeedsElementsError", "Results", "SizesOnly"]

_OF_ELEMENTS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


@dataclass(frozen=True)
class _Form:
    """The size, strides, type and device of a tensor."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def zeros(self) -> Tensor:
        return torch.empty_strided(self.size, self.strides, dtype=self.dtype, device=self.device).zero_()


class Results:
    """The results of modules that were called once and returned one dense tensor of floating-point numbers."""

    def __init__(self) -> None:
        self._known: dict[nn.Module, _Form | None] = {}

    def note(self, module: nn.Module, result: Any) -> None:
        self._known[module] = None if module in self._known else _form(result)

    def of(self, module: nn.Module) -> Tensor | None:
        """Zeros in place of what the module returned; None if it has to be called."""
        form = self._known.get(module)
        return None if form is None else form.zeros()

    def knows(self, module: nn.Module) -> bool:
        return self._known.get(module) is not None


def _form(result: Any) -> _Form | None:
    if type(result) is not Tensor or result.layout is not torch.strided or not result.is_floating_point():
        return None
    last = CHANNELS_LAST.get(result.dim(), torch.contiguous_format)
    if not result.is_contiguous() and not result.is_contiguous(memory_format=last):
        return None
    return _Form(tuple(result.shape), result.stride(), result.dtype, result.device)


class NeedsElementsError(Exception):
    """A size or a number depends on the elements of a tensor."""


class SizesOnly(DispatchMode):
    """Raises `NeedsElementsError` where zeros would not do."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _OF_ELEMENTS.isdisjoint(func.tags):
            raise NeedsElementsError(str(func))
        return func(*args, **(kwargs or {}))
