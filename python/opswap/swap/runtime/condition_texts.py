# SPDX-License-Identifier: MIT
"""Conditions of rules whose text a file of the rules has: why a condition is false for the values that it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["describe_condition", "text_of_condition"]

_texts: dict[Any, Callable[..., str]] = {}


def describe_condition(condition: Callable[..., Any], text: Callable[..., str]) -> None:
    """Let reports use `text`, called with the arguments of the condition; "" shows the condition as it is written."""
    _texts[condition] = text


def text_of_condition(condition: Any) -> Callable[..., str] | None:
    """The text of a condition, None without one."""
    try:
        return _texts.get(condition)
    except TypeError:  # a value that cannot be hashed
        return None
