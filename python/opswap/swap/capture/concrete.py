# SPDX-License-Identifier: MIT
"""Make nodes of a traced forward's calls on tensors that exist already, or that it creates."""

from __future__ import annotations

import operator
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from opswap._torch import tree_leaves

from ..runtime import purity
from .quiet import Draws

if TYPE_CHECKING:
    from .tracer import Tracer

__all__ = ["Concrete", "TraceDraws"]

_FX = os.path.join(os.path.dirname(torch.__file__), "fx") + os.sep
# They give Python what is in the memory of a tensor.
_READING = """
    __array__ __complex__ __contains__ __dlpack__ __format__ __iter__ __repr__ data_ptr numpy storage tolist
    untyped_storage
"""
_READS = frozenset(_READING.split())
_STAND_IN = "record_or_call"  # what a tracer puts in the place of torch's factories
_OPERATORS = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
}


class Concrete(TorchFunctionMode):
    """Sees every call of torch in a trace; calls in the user's code without a proxy become nodes too.

    So a tensor that the forward makes is made again on every call, and one that it has is read on every call.
    """

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._tracer.computing_example or not _called_by_user() or _has_proxy((args, kwargs)):
            return func(*args, **kwargs)
        return self._record(func, args, kwargs)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracer = self._tracer
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return getattr(self._proxy(args[0]), func.__self__.__name__)
        if name in ("__hash__", "_set_grad_enabled"):  # the tracer notices another gradient mode
            return func(*args, **kwargs)
        where = tracer.inspect_frames()
        if name in _READS or name in ("__set__", "__delete__"):
            raise tracer.refuse(f"{name}() of a tensor is called at {where}, which a capture cannot follow")
        questions = {
            "__bool__": tracer.to_bool,
            "__float__": float,
            "__index__": tracer.integer,
            "__int__": tracer.integer,
            "__len__": tracer.length,
        }
        if name in questions and isinstance(args[0], Tensor):
            return questions[name](self._proxy(args[0]))
        if getattr(Tensor, name, None) is func:
            if name in _OPERATORS:
                return tracer.create_proxy("call_function", _OPERATORS[name], args, kwargs)
            return tracer.create_proxy("call_method", name, args, kwargs)
        return tracer.create_proxy("call_function", func, args, kwargs)

    def _proxy(self, tensor: Tensor) -> fx.Proxy:
        return self._tracer.proxy(self._tracer.create_arg(tensor))


class TraceDraws(Draws):
    """Whether an operator of a trace draws random numbers, in this thread.

    Runs of modules for an example value do not count: they leave the generators as they were.
    """

    tracer: Tracer

    def listens(self) -> bool:
        return not self.tracer.computing_example


def _has_proxy(arguments: Any) -> bool:
    return any(issubclass(type(a), fx.Proxy) for a in tree_leaves(arguments))


def _called_by_user() -> bool:
    """True if the nearest code outside of torch's functions is the user's."""
    frame = sys._getframe(2)
    while frame is not None:
        kind = purity.owner_of_frame(frame)
        if frame.f_code.co_filename.startswith(_FX) or (
            kind == purity.OWN and frame.f_code.co_name != _STAND_IN
        ):
            return False
        if kind not in (purity.TORCH, purity.LIBRARY, purity.OWN):
            return True
        frame = frame.f_back
    return False
