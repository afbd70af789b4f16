# SPDX-License-Identifier: MIT
"""A module each of whose attributes is read once per call.

A condition reads a weight, and then a replacement or the stock forward does. Where the class of the module makes the
weight (`torch.nn.utils.parametrize`, a property), each read may draw random numbers or write to buffers, as that of
spectral_norm does.
"""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from .guards import SET_METHODS
from .instance_forward import fits
from .members import static_attribute

__all__ = ["once"]


class _Once:
    """Represents a layer of torch as `self` of its forward: methods are bound to this object."""

    def __init__(self, module: nn.Module) -> None:
        own = {name: value for name, value in vars(module).items() if name in SET_METHODS}
        vars(self).update(own, _opswap_module=module)

    def __getattr__(self, name: str) -> Any:
        module = vars(self)["_opswap_module"]
        method = static_attribute(type(module), name)
        if isinstance(method, FunctionType) and name not in vars(module):
            value: Any = MethodType(method, self)
        else:
            value = getattr(module, name)
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self).pop(name, None)
        setattr(vars(self)["_opswap_module"], name, value)


def once(module: Any, cls: type | None) -> Any:
    """For a module of another class than `cls`: what reads its attributes once, if that is a subclass of a class of
    torch; else the module itself."""
    if cls is None or torch.compiler.is_compiling():
        return module
    return _Once(module) if cls.__module__.startswith("torch.nn.") and fits(module, cls) else module
