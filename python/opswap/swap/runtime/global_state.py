# SPDX-License-Identifier: MIT
"""State of whole libraries on which their arithmetic and texts depend, as texts that are compared by identity.

torch.compile takes the answers as constants, as it does with the libraries themselves.
"""

from __future__ import annotations

import decimal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["decimal_context", "numpy_options", "state_behind"]


def decimal_context() -> str:
    """How numbers of `decimal` are rounded and shown, and what raises."""
    c = decimal.getcontext()
    traps = [signal.__name__ for signal, trapped in c.traps.items() if trapped]
    return sys.intern(f"{c.prec} {c.rounding} {c.Emin} {c.Emax} {c.capitals} {c.clamp} {traps}")


def numpy_options() -> str:
    """What NumPy does about division by zero and the like, and how it shows scalars."""
    numpy: Any = sys.modules["numpy"]
    call = numpy.geterrcall()
    legacy = numpy.get_printoptions()["legacy"]
    return sys.intern(f"{numpy.geterr()} {call and id(call)} {legacy}")


for _query in (decimal_context, numpy_options):
    _query.__dict__["_dynamo_marked_constant"] = True


def state_behind(value: Any) -> Callable[[], str] | None:
    """The query for the library that a value comes from, None if it has none."""
    if isinstance(value, ModuleType):
        name = value.__name__
    else:
        name = getattr(value if isinstance(value, type) else type(value), "__module__", "")
        if name == "builtins":
            name = getattr(value, "__module__", "")
    top = name.partition(".")[0] if isinstance(name, str) else ""
    if top in ("decimal", "_decimal", "_pydecimal"):
        return decimal_context
    return numpy_options if top == "numpy" and "numpy" in sys.modules else None
