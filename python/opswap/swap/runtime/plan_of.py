# SPDX-License-Identifier: MIT
"""Where a swap leaves its plan on a module: copied, pickled and freed with it, and not seen by vars(self).

The plan is an attribute of the OrderedDict in which torch keeps the module's state_dict hooks.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

__all__ = ["PLAN", "keep_plan", "plan_of"]

PLAN = "_opswap_plan"
_HOLDER = "_state_dict_hooks"


def plan_of(module: nn.Module) -> Any:
    """What `keep_plan` left on the module; None without."""
    held = vars(module)
    return getattr(held.get(_HOLDER), PLAN, None) or held.get(PLAN)


def keep_plan(module: nn.Module, planned: Any) -> None:
    """Leave a plan on the module in place of a former one; None leaves none.

    If the module has no such OrderedDict, the plan is in the module's own dictionary.
    """
    held = vars(module)
    holder = held.get(_HOLDER)
    held.pop(PLAN, None)
    if isinstance(holder, OrderedDict):
        vars(holder).pop(PLAN, None)
        if planned is not None:
            setattr(holder, PLAN, planned)
    elif planned is not None:
        held[PLAN] = planned
