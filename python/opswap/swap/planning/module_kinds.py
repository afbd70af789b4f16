# SPDX-License-Identifier: MIT
"""What a module is to the planner, by its class and by what is set on it."""

from __future__ import annotations

import torch
from torch import fx, nn
from torch.nn.utils.parametrize import is_parametrized

from ..runtime.instance_forward import overridden

__all__ = [
    "copies_itself",
    "is_compiled",
    "is_library",
    "is_own",
    "is_sequential",
    "may_view",
    "source_of",
    "unsupported",
]


def may_view(module: nn.Module) -> bool:
    """True if a forward that could not be captured calls view()."""
    code = None if is_compiled(module) else getattr(type(module).forward, "__code__", None)
    return code is not None and "view" in code.co_names


def is_sequential(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def is_library(module: nn.Module) -> bool:
    """True for the modules of torch and of opswap, whose forwards are not searched by default."""
    cls = type(module).__base__ if is_parametrized(module) else type(module)
    name = cls.__module__
    return name.startswith(("torch.", "opswap.nn")) and not is_sequential(module) and not is_compiled(module)


def is_compiled(module: nn.Module) -> bool:
    return isinstance(module, (torch.jit.ScriptModule, fx.GraphModule))


def unsupported(module: nn.Module) -> str:
    """Why a module cannot be given a new forward."""
    if is_compiled(module):
        return f"is a {'ScriptModule' if isinstance(module, torch.jit.ScriptModule) else 'GraphModule'}"
    if "forward" in vars(module) and overridden(module):
        return "has a forward of its own on the instance"
    if is_parametrized(module):
        return "is parametrized, which gives it a class of its own"
    return ""


def copies_itself(module: nn.Module) -> bool:
    """True if a copy or a pickle would lose what a swap puts on the instance."""
    names = {k for c in type(module).__mro__[:-1] if c is not nn.Module for k in vars(c)}
    return not names.isdisjoint(("__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__"))


def is_own(module: nn.Module) -> bool:
    """True for the modules of this package that replace others; its models are models like any other."""
    return type(module).__module__.startswith(("opswap.nn.", "opswap.merge."))


def source_of(module: nn.Module) -> str:
    code = None if is_compiled(module) else getattr(type(module).forward, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
