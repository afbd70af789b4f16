# SPDX-License-Identifier: MIT
"""Modules whose dictionaries a forward reads, by vars(), dir() or __dict__, in which a new forward would appear."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch import nn

from ..capture.bytecode import looks_inside, reads
from ..runtime.members import static_attribute, with_inner
from ..runtime.outside import read
from ..runtime.purity import USER, owner

__all__ = ["SEEN_INSIDE", "seen_inside"]

SEEN_INSIDE = "code of another module reads its dictionary, by vars(), dir() or __dict__"


def seen_inside(module: nn.Module) -> Iterator[nn.Module]:
    """The modules below this one whose dictionary its forward reads, or a function or method that the forward names.

    All of them if the code reads the dictionary of an object of which only the running code knows what it is.
    """
    cls = type(module)
    waiting: list[Any] = [static_attribute(cls, "forward")]
    done: set[CodeType] = set()
    names: set[str] = set()
    while waiting:
        function = getattr(waiting[-1], "__func__", waiting.pop())  # of a static or class method
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType) or code in done:
            continue
        done.add(code)
        if owner(code.co_filename, getattr(function, "__module__", None) or "") != USER:
            continue
        is_method = static_attribute(cls, function.__name__) is function
        names |= looks_inside(code, code.co_varnames[0] if is_method and code.co_argcount else "")
        waiting += [read(cell, "cell_contents") for cell in getattr(function, "__closure__", None) or ()]
        for part in with_inner(code):
            found = reads(part)
            waiting += [static_attribute(cls, name) for name in found.attributes]
            waiting += [getattr(function, "__globals__", {}).get(name) for name in found.names]
    if "" in names:
        yield from (m for m in module.modules() if m is not module)
    for name in names:
        child = module._modules.get(name)
        if child is not None:
            yield child
