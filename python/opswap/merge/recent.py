# SPDX-License-Identifier: MIT
"""What was looked up last, of as many keys as are worth keeping."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")

# One for all: replicas of a module in several threads share its dictionaries.
_LOCK = threading.Lock()


class Recent(dict[K, V], Generic[K, V]):
    """A dict of the `limit` keys that were looked up or added last, the latest at the end."""

    limit = 64

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """For copies and pickles, while other threads may look up keys."""
        with _LOCK:
            return type(self), (), None, None, iter(list(self.items()))

    def look_up(self, key: K) -> V | None:
        """The value of a key, which becomes the latest; None if the key is missing."""
        with _LOCK:
            value = self.pop(key, None)
            if value is not None:
                self[key] = value
            return value

    def add(self, key: K, value: V) -> None:
        """Add the latest key; the oldest ones beyond the limit are dropped."""
        with _LOCK:
            self.pop(key, None)
            self[key] = value
            while len(self) > self.limit:
                del self[next(iter(self))]

    def latest(self, number: int) -> list[V]:
        """The last values, the latest first."""
        with _LOCK:
            return list(self.values())[::-1][:number]
