# SPDX-License-Identifier: MIT
"""Spellings of arithmetic: what a node computes of which operands, in functions, methods and operators."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

__all__ = ["is_call", "operands", "squared"]


def is_call(node: Any, functions: tuple[Any, ...], methods: tuple[str, ...]) -> bool:
    """True for a call of one of the functions, or of a method with one of the names."""
    if not isinstance(node, Node):
        return False
    names = {"call_function": functions, "call_method": methods}
    return node.target in names.get(node.op, ())


def operands(node: Any, functions: tuple[Any, ...], methods: tuple[str, ...]) -> tuple[Any, ...]:
    """The two operands of a call without options, else nothing."""
    plain = is_call(node, functions, methods) and len(node.args) == 2 and not node.kwargs
    return node.args if plain else ()


def squared(node: Any) -> Any:
    """What is squared, by a function for it or a power, or None."""
    if is_call(node, (torch.square,), ("square",)) and len(node.args) == 1 and not node.kwargs:
        return node.args[0]
    pair = operands(node, (torch.pow, operator.pow), ("pow",))
    return pair[0] if pair and type(pair[1]) in (int, float) and pair[1] == 2 else None
