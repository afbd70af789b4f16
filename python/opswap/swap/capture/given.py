# SPDX-License-Identifier: MIT
"""The lists of stand-ins that a traced forward gets in place of lists of tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from ..runtime.lists import Listed

__all__ = ["Given"]


class Given:
    """Lists and tuples that are arguments of the forward, and what was in them."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, tuple[Any, ...]]] = []

    def add(self, listed: Listed, proxies: Iterable[Any]) -> Any:
        """A new one of these proxies."""
        held = tuple(proxies)
        made = listed.kind(list(held))
        self._known.append((made, held))
        return made

    def __contains__(self, value: Any) -> bool:
        return any(value is made for made, _ in self._known)

    def changed(self) -> bool:
        """True if the forward has written to one of them."""
        return any(
            len(now) != len(then) or not all(map(operator.is_, now, then)) for now, then in self._known
        )
