# SPDX-License-Identifier: MIT
"""The stand-in for a tensor while a forward is traced: it calls its tracer when Python needs a number or a class."""

from __future__ import annotations

import dis
import math
import operator
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor, fx
from torch.fx.graph import inplace_methods
from torch.fx.proxy import Attribute

from ..graph.calls import graph_kinds
from ..graph.metadata import ATTRIBUTES, is_metadata, is_shape
from ..runtime.purity import SWAP_FOLDER, TORCH_FOLDER
from .identity import is_compared

if TYPE_CHECKING:
    from .tracer import Tracer

__all__ = ["StandIn", "has_attributes"]

_FX = f"{TORCH_FOLDER}fx{os.sep}"
_CEIL, _FLOOR = math.ceil, math.floor  # themselves: a trace puts others into the module
# Attributes of tensors that are None at times: no proxy is.
_NONE_OR_NOT = frozenset(("_backward_hooks", "_base", "_grad", "_grad_fn", "grad", "grad_fn"))
_OF_HISTORY = _NONE_OR_NOT | {"_version"}  # a replacement writes less often to what it returns


class StandIn(fx.Proxy):
    """A proxy that calls its tracer when Python needs a number, a length or a class immediately."""

    tracer: Tracer

    def __getattr__(self, name: str) -> _Attribute:
        if name in _OF_HISTORY and not _called_from_torch():
            raise self.tracer.refuse(f"the {name} of a tensor is read at {self.tracer.inspect_frames()}")
        frame = sys._getframe(1)
        if is_compared(frame.f_code, frame.f_lasti) and not _called_from_torch():
            where = self.tracer.inspect_frames()
            raise self.tracer.refuse(f"the {name} of a tensor is compared by identity at {where}: use ==")
        called = self.tracer.follower.called_by(frame)
        if called is hasattr and not _called_from_torch():
            where = self.tracer.inspect_frames()
            raise self.tracer.refuse(
                f"hasattr() asks a tensor, or what a module returns, for {name} at {where}"
            )
        if called is getattr and not _is_of_tensors(name):
            where = self.tracer.inspect_frames()
            raise self.tracer.refuse(f"a tensor, or what a module returns, may have no {name} at {where}")
        return _Attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """fx sets attributes of its own; one of a tensor would be lost."""
        self._refuse_write(name, sys._getframe(1))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse_write(name, sys._getframe(1))
        super().__delattr__(name)

    def _refuse_write(self, name: str, frame: FrameType) -> None:
        if not frame.f_code.co_filename.startswith((_FX, SWAP_FOLDER)):
            where = self.tracer.inspect_frames()
            raise self.tracer.refuse(f"the attribute {name} of a tensor is set or deleted at {where}")

    def __iter__(self) -> Iterator[Any]:
        """As fx does; to how many names values are unpacked is checked by the rewritten forward too."""
        frame = sys._getframe(1)
        number = _unpacked(frame)
        if number is None:
            return self.tracer.iter(self)
        if self.node.meta.setdefault("unpacked", number) != number:
            raise self.tracer.refuse(
                f"values are unpacked to {number} names, and to another number elsewhere"
            )
        return iter([self[i] for i in range(number)])

    def __len__(self) -> int:
        return self.tracer.length(self)

    def __int__(self) -> int:
        return self.tracer.integer(self)

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.tracer.integer(self))

    def __ceil__(self) -> Any:
        return self._rounded(_CEIL)

    def __floor__(self) -> Any:
        return self._rounded(_FLOOR)

    def _rounded(self, function: Callable[[Any], int]) -> Any:
        if not is_metadata(self.node):
            return self.tracer.integer(self)
        return self.tracer.create_proxy("call_function", function, (self,), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})

    def _in_place(self, function: Callable[..., Any], other: Any) -> Any:
        """x += y and its like: a write if x may be a tensor; numbers and tuples give new ones."""
        if is_metadata(self.node) or graph_kinds(self.node.graph)[self.node] == "tuple":
            return NotImplemented
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    def __hash__(self) -> int:
        """For a number, the number's own hash, by which it is looked up in a dict."""
        if _called_from_torch() or (isinstance(self, Attribute) and self.attr not in ATTRIBUTES):
            return object.__hash__(self)
        node = self.node
        if not is_metadata(node):
            raise self.tracer.refuse(f"a tensor is hashed at {self.tracer.inspect_frames()}")
        if is_shape(node) or (is_metadata(node) and node.target is getattr and node.args[1] != "ndim"):
            raise self.tracer.refuse(
                f"a size, dtype or device of a tensor is hashed at {self.tracer.inspect_frames()}"
            )
        return hash(self.tracer.integer(self))

    def __repr__(self) -> str:
        if _called_from_torch():
            return super().__repr__()
        return self.tracer.text_of(self.node, sys._getframe(1), "repr")

    def __str__(self) -> str:
        if _called_from_torch():
            return super().__repr__()
        return self.tracer.text_of(self.node, sys._getframe(1), "str")

    def __format__(self, spec: str) -> str:
        if _called_from_torch():
            return super().__format__(spec)
        return self.tracer.text_of(self.node, sys._getframe(1), "format", spec)

    @property
    def __class__(self) -> type:
        """What isinstance() sees: this class for torch and opswap, the value's own for the user's code."""
        if _called_from_torch():
            return type(self)
        return self.tracer.class_of(self)


def has_attributes(stand_in: StandIn) -> bool:
    """True if something was set on it past `__setattr__`."""
    return not vars(stand_in).keys() <= {"node", "tracer"}


def _is_of_tensors(name: str) -> bool:
    """True for an attribute that every tensor has."""
    return hasattr(Tensor, name) and not name.startswith("__")


def _in_place_method(function: Callable[..., Any]) -> Callable[[StandIn, Any], Any]:
    return lambda self, other: self._in_place(function, other)


for _name in set(inplace_methods) - {"imatmul", "setitem"}:  # x @= y gives a new tensor
    setattr(StandIn, f"__{_name}__", _in_place_method(getattr(operator, _name)))


class _Attribute(StandIn, Attribute):
    """An attribute of a proxy, which becomes a node when it is used."""


def _unpacked(frame: FrameType) -> int | None:
    """To how many values the current instruction unpacks an iterable; None for a loop."""
    for op in dis.get_instructions(frame.f_code):
        if op.offset == frame.f_lasti:
            return op.arg if op.opname == "UNPACK_SEQUENCE" else None
    return None


def _called_from_torch() -> bool:
    """True if the caller's caller is code of torch or of opswap."""
    return sys._getframe(2).f_code.co_filename.startswith((TORCH_FOLDER, SWAP_FOLDER))
