# SPDX-License-Identifier: MIT
"""Draw random numbers from a generator of one's own, which other threads do not advance."""

from __future__ import annotations

from typing import Any

import torch

from opswap._dispatch_mode import DispatchMode

__all__ = ["OwnDraws"]


class OwnDraws(DispatchMode):
    """While it is active, operators of this thread draw from `generator`, not from torch's default one.

    With the same seed they draw the same numbers. opswap's dropout runs as torch's. An operator that cannot be given a
    generator draws from the default one, which has the state of `generator` meanwhile.

    Args: seed: of the generator.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        schema = func._schema.arguments
        (place,) = [i for i, a in enumerate(schema) if a.name == "generator"] or [None]
        if place is None:
            return self._instead(func, args, kwargs)
        if kwargs.get("generator") is not None or (len(args) > place and args[place] is not None):
            return func(*args, **kwargs)
        if len(args) > place:
            args = (*args[:place], self.generator, *args[place + 1 :])
        else:
            kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)

    def _instead(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function with this generator's state as that of the default one."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.generator.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            self.generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)
