# SPDX-License-Identifier: MIT
"""What the finders' dispatch modes share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

from opswap._dispatch_mode import DispatchMode
from opswap._torch import OpOverload, composite_kernel, graph_task

from .operators import tensors_in

__all__ = ["FinderMode"]

_inferring = torch.is_inference_mode_enabled
_ORDINARY = frozenset({Tensor, Parameter})


class FinderMode(DispatchMode):
    """Base: a subclass runs every operator as it is, in `_run`, and shows it to its watcher.

    In inference mode, without autograd, composite operators come as a whole; elsewhere their parts do. A subclass with
    `_by_parts` gets the parts there too.

    Args: after_operator: called after every operator with whether it ran inside a backward.
    """

    _by_parts = False
    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper around each call, which costs as much as all else; nothing is compiled while this is in force."""
        return False

    def __init__(self, after_operator: Callable[[bool], None] | None) -> None:
        super().__init__()
        self._after_operator = after_operator
        self._thread = threading.get_ident()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and not _ORDINARY.issuperset(types):
            if any(hasattr(t, "__tensor_flatten__") for t in types):
                return NotImplemented  # the parts of a wrapper come to a mode one by one
            return func(*args, **(kwargs or {}))  # fake tensors, and others that hold nothing
        kernel = self._composite(func, args, kwargs or {}) if self._by_parts and _inferring() else None
        if kernel is None:
            out = self._run(func, args, kwargs or {})
        else:
            with self:
                out = kernel(*args, **(kwargs or {}))
        if self._after_operator is not None:
            self._after_operator(graph_task() >= 0)
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator's result. The frame of the call is two above, if any: threads of CUDA's backward have none."""
        raise NotImplementedError

    @staticmethod
    def _composite(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function that calls the parts of an operator, None if it has none."""
        if not isinstance(func, OpOverload):
            return None
        if any(t.is_nested for t in tensors_in((*args, *kwargs.values()))):  # has kernels of its own
            return None
        return composite_kernel(func)
