# SPDX-License-Identifier: MIT
"""Lets einops run on the proxies of a capture, by the classes through which it supports every framework."""

from __future__ import annotations

import sys
from typing import Any

from torch import fx

__all__ = ["register"]

_backend: type | None = None  # einops finds subclasses as long as they live


def register() -> None:
    """Register proxies with einops, if it has been imported."""
    global _backend
    if _backend is not None or "einops" not in sys.modules:
        return
    from einops._backends import AbstractBackend

    class ProxyBackend(AbstractBackend):
        """einops' steps as calls on a proxy."""

        framework_name = __name__

        def is_appropriate_type(self, tensor: Any) -> bool:
            return issubclass(type(tensor), fx.Proxy)

        def shape(self, x: fx.Proxy) -> list[Any]:
            """A list, which einops does not cache."""
            return list(x.shape)

        def reshape(self, x: fx.Proxy, shape: list[Any]) -> fx.Proxy:
            return x.reshape(tuple(shape))

        def transpose(self, x: fx.Proxy, axes: list[int]) -> fx.Proxy:
            return x.permute(tuple(axes))

    _backend = ProxyBackend
