# SPDX-License-Identifier: MIT
"""What to write by hand if a capture cannot find opswap's operator in a forward."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn

__all__ = ["group_loop_hint"]

_PRODUCTS = {"bmm", "linear", "matmul", "mm"}
_HINT = (
    "; the loop over groups in {name} is opswap.functional.grouped_linear(h, weight.transpose(1, 2)), "
    "or, as a call (h, weight, out), opswap.nn.GroupFC()"
)


def group_loop_hint(module: nn.Module) -> str:
    """Text for a report if the module, or a callable that it holds, fills slices of a result in a loop of products.

    Returns: "" if it does not.
    """
    if isinstance(module, torch.jit.ScriptModule):
        text = getattr(module, "code", "")
        loops = "for " in text and "copy_" in text and any(f"torch.{p}(" in text for p in _PRODUCTS)
        return _HINT.format(name="its forward") if loops else ""
    for name, code in _codes(module):
        if _loops_over_groups(code):
            return _HINT.format(name=name)
    return ""


def _codes(module: nn.Module) -> Iterator[tuple[str, CodeType]]:
    """The forward, and what its attributes that are not modules do when they are called."""
    callables: list[tuple[str, Any]] = [("forward", type(module).forward)]
    callables += [(name, vars(type(value)).get("__call__")) for name, value in vars(module).items()]
    for name, function in callables:
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield name, code


def _loops_over_groups(code: CodeType) -> bool:
    operations = {(i.opname, i.argrepr) for i in dis.get_instructions(code)}
    names = {name for name, _ in operations}
    products = not _PRODUCTS.isdisjoint(code.co_names) or ("BINARY_OP", "@") in operations
    return products and {"FOR_ITER", "STORE_SUBSCR"} <= names
